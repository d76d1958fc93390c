//! HTTP endpoints, such as webhooks: each message is one POST, as a CloudEvent. Publishes only: the
//! receiver is a server of its own, with its inbox behind it.
//!
//! | file | what it holds |
//! |---|---|
//! | `config.rs` | [`Config`]: the operator's settings |
//! | `address.rs` | the address of an endpoint, and the hosts that messages may name |
//! | `networks.rs` | the addresses that requests may go to |
//! | `endpoints.rs` | the endpoint that a message goes to |
//! | `secrets.rs` | signing keys in files that are read again when they change |
//! | `certificates.rs` | the TLS settings of connections, from files that are read again |
//! | `signature.rs` | signatures of Standard Webhooks |
//! | `client.rs` | connections to checked addresses |
//! | `connector.rs` | [`Connector`]: opens publishing sessions |
//! | `publisher.rs` | one session: gives submissions their endpoints |
//! | `dispatcher.rs` | keeps a bounded number of requests in flight |
//! | `share.rs` | what waits for an endpoint or a host, and which message is next |
//! | `send.rs` | one request and its answer |
//! | `streak.rs` | an endpoint that fails on one message after the other |
//! | `steady.rs` | connections whose answer is read even after writing has failed |
//! | `stops.rs` | endpoints that are gone or asked to wait |
//! | `wire.rs` | message to request and back |
//! | `fault.rs` | classifies statuses and errors |
//! | `fuzzing.rs` | parts for the fuzz targets |
//! | `quote.rs` | quotes an answer's body in an error, unless it may contain a secret or a payload |
//! | `inspect.rs` | connects to the endpoints, for `relay doctor` |
//! | `receiver.rs` | [`Verifier`]: the other side, in front of an inbox |
//!
//! # Publishing
//! A message goes to the URL in its `endpoint_header` if that is allowed, or else to the endpoint
//! of its topic, or else to `url`. The status of the answer decides; its body is read only as far
//! as an error can quote it, and quoted only if it repeats nothing that errors must not show.
//! Redirects are not followed, and no proxy is used.
//!
//! | what happens | receipt |
//! |---|---|
//! | 2xx, a status of `accepted_statuses` | confirmed |
//! | 429, 425, 502, 503, 504 | broker's fault, topic pauses; `Retry-After` is respected within its bound |
//! | 500, 501, 505 and above | broker's fault with this message: its key waits; outcome unknown. For `concurrency` messages (at least 4) in succession: broker's fault, topic pauses |
//! | no connection | broker's fault, topic pauses; nothing was sent |
//! | 408, 101, no answer in time, a connection that breaks | broker's fault, topic pauses; outcome unknown |
//! | 410 | operator's fault, topic stops; nothing more is sent to the URL until a restart. If the message names the URL: its own fault, final |
//! | 3xx, a status of `stopping_statuses`, an unverified certificate, a forbidden address, an unreadable secret | operator's fault, topic stops |
//! | any other 4xx, too large | message's fault |
//! | no endpoint for the topic | operator's fault, topic stops |
//! | more messages wait for the endpoint than it takes soon | broker's fault, topic is busy |
//! | a URL in the message that is not allowed | message's fault, final |
//! | nothing can be reached at the start of a session | broker's or operator's fault, session |
//!
//! Where messages name their endpoints, the scope is the message instead of the topic: its key
//! waits, others continue. A failure of an endpoint that had the request and did not ask to wait is
//! marked: the message may have caused it
//! ([`about_this_message`](message::PublishError::about_this_message)).
//!
//! A message with an unknown outcome is sent again under the same id (`ce-id`, `Idempotency-Key`,
//! `webhook-id`), so the receiver needs an inbox. The order of a key holds: only one of its
//! messages is in flight at a time.
//!
//! # Traps
//! - A receiver that answers 409 while it still works on the message (as the draft of
//!   `Idempotency-Key` demands) must not be listed with 409 in `accepted_statuses`: the message
//!   would be lost if that work failed.
//! - Servers accept 8 to 16 KiB of headers and about 100 of them. Messages with many free headers
//!   need structured mode.
//! - Names of headers arrive in lower case, except in structured mode.

mod address;
mod certificates;
mod client;
mod config;
mod connector;
mod depth;
mod dispatcher;
mod endpoints;
mod fault;
/// Open to the fuzz targets.
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod inspect;
mod networks;
mod publisher;
mod quote;
mod receiver;
mod secrets;
mod send;
mod share;
mod signature;
mod steady;
mod stops;
mod streak;
pub(crate) mod wire;

pub use config::{AllowedHost, Config, Endpoint, Mode};
pub use connector::Connector;
pub use inspect::{EndpointFacts, inspect};
pub use receiver::{Unverified, Verifier};
pub use wire::read;

#[cfg(test)]
mod tests;
