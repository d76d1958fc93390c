//! RabbitMQ over AMQP 0-9-1.
//!
//! | file | what it holds |
//! |---|---|
//! | `config.rs` | [`Config`]: the operator's settings |
//! | `endpoint.rs` | turns URL, credentials and certificates into logins |
//! | `credential.rs` | the credential of a login: a password, or a token of OAuth 2 |
//! | `opening.rs` | opens connections whose credential is renewed |
//! | `unrouted.rs` | messages that no queue takes: they wait, are dead, or pass |
//! | `unopened.rs` | why no connection was opened, at one host or several |
//! | `uri.rs` | reads the URL |
//! | `connection.rs` | a connection whose end ends every wait for an answer on it |
//! | `end.rs` | detects the end of a connection, and brings it about |
//! | `renewal.rs` | a password or a token that is replaced while a connection lasts |
//! | `token.rs` | the expiry of an access token that is used as a password |
//! | `connector.rs` | [`Connector`]: opens publishing sessions |
//! | `publisher.rs` | one session: submissions, and as many lanes as they need |
//! | `backlog.rs` | messages that wait to be published, by topic |
//! | `lane.rs` | one channel that publishes window after window |
//! | `window.rs` | messages that are published and confirmed together |
//! | `confirm.rs` | publishes one window, and subtracts the returns from its confirms |
//! | `suspects.rs` | the search for a message that makes the broker close a channel |
//! | `subscription.rs` | [`Subscriber`]: consumes queues |
//! | `consumer.rs` | a consumer that ends with its channel, and never before |
//! | `ledger.rs` | delivery tags and the fewest acknowledgements for them |
//! | `wire.rs` | message to AMQP record and back (CloudEvents AMQP binding, binary mode) |
//! | `headers.rs` | headers as AMQP has them |
//! | `fault.rs` | classifies the client's errors |
//! | `inspect.rs`, `facts.rs` | the broker's answers about its queues, for `relay doctor` |
//! | `management.rs`, `management_url.rs` | the management API and its address: settings of queues, which AMQP does not report |
//! | `alarms.rs` | alarms during which no server accepts messages |
//! | `admin.rs` | [`Admin`]: queues and exchanges for tests, examples and the demo |
//!
//! # Publishing
//! The topic is the routing key on the configured exchange; with the default exchange it is the
//! queue's name. Messages are persistent and `mandatory`, and a receipt is `Ok` only after the
//! broker's confirm for a message that was routed:
//!
//! | what happens | receipt |
//! |---|---|
//! | no queue is bound | operator's fault, topic stops; or as [`Config::unroutable`] says: the message's fault, for good, or `Ok` |
//! | a full queue rejects (`overflow=reject-publish`) | broker's fault, topic pauses |
//! | payload or headers too large, here or on the broker | message's fault; no other message is affected |
//! | exchange missing, no permission | operator's fault, topic stops (at connect: session) |
//! | no confirm in time, while other topics get theirs | broker's fault, topic pauses; outcome unknown |
//! | connection lost, or no confirm at all in time | broker's fault, session; outcome unknown |
//! | publishers blocked by an alarm | none until it is over: a new connection would only publish the same messages again |
//! | a topic that was published before on this session is refused for lack of permission (an expired token) | broker's fault, session: the next one logs in again |
//! | wrong credentials, unknown virtual host, untrusted certificate | operator's fault, session |
//! | no token: the issuer refuses the client, or is away | operator's or broker's fault, session |
//!
//! Order per key holds because the relay keeps one unconfirmed message per key
//! ([`MaxInFlightPerKey::One`](message::MaxInFlightPerKey)); many keys are in flight at once.
//!
//! # Consuming
//! Acknowledgements are manual, and the prefetch bounds deliveries. Order per key holds for one
//! subscription per queue. A subscription that is dropped ends in the background: its
//! [`Subscriber`] waits for that before it consumes again, and another one does not. For hot
//! standbys, declare the queue with `x-single-active-consumer`: a standby gets nothing before
//! everything that the active subscription left unsettled is back in the queue, whether it stops
//! gracefully, loses its connection or is dropped. A released delivery goes back to its position,
//! as far as the queue can do that.
//!
//! A graceful stop finishes and acknowledges the work in hand, and then closes the connection. The
//! rest of the prefetched messages goes back at that moment. Other consumers of the queue wait for
//! these messages as long as the longest running handler takes; a smaller prefetch makes them
//! fewer.
//!
//! # Traps
//! - `overflow=drop-head`, the default of a bounded queue, drops messages that were acknowledged to
//!   us.
//! - A quorum queue drops a message after 20 deliveries (RabbitMQ 4) unless it has a dead-letter
//!   exchange. Measured on 3.10: the end of a session counts one delivery for every unsettled
//!   message, and `basic.nack` with requeue also counts one (from RabbitMQ 4.3 it does not). A
//!   message that is handed back while its consumer exists comes to it again and counts twice. So a
//!   graceful stop leaves it to the end of the session to hand back, which counts one delivery for
//!   prefetched messages. AMQP does not show a queue's arguments and policies, so a subscription
//!   can only warn when a message was delivered ten times (`x-delivery-count`): give such queues a
//!   dead-letter exchange or a higher `delivery-limit`.
//! - A delivery that stays unsettled for 30 minutes makes the broker close the channel
//!   (`consumer_timeout`).
//! - Each queue of a subscription has a channel with its own prefetch. Quorum queues always refuse
//!   a shared bound (`global`), and RabbitMQ 4.3 refuses it for every queue.
//! - A stream that is consumed as a queue starts at its end after every pause, and acknowledgements
//!   do not change that: a subscription refuses it at its first delivery.
//! - The client library writes returned messages to its log, payload included: see
//!   [`PAYLOAD_LOG_TARGET`].

mod admin;
mod alarms;
mod backlog;
mod config;
mod confirm;
mod connection;
mod connector;
mod consumer;
mod credential;
mod end;
mod endpoint;
mod evidence;
mod facts;
#[cfg(test)]
mod fake;
mod fault;
mod headers;
mod inspect;
mod lag;
mod lane;
mod ledger;
mod management;
mod management_url;
mod opening;
mod publisher;
mod renewal;
mod subscription;
mod suspects;
mod token;
mod unopened;
mod unrouted;
mod uri;
mod window;
pub(crate) mod wire;

pub use admin::{Admin, QueueOptions};
pub use config::{Auth, Config, Unroutable};
pub use connector::Connector;
pub use facts::{QueueFacts, QueueSettings, TopicFacts};
pub use inspect::inspect;
pub use subscription::Subscriber;

/// The tracing target under which the client library logs returned messages with their payloads, at
/// `WARN`. A program must filter it out (`lapin::returned_messages=off`); every return is reported
/// by its receipt anyway.
pub const PAYLOAD_LOG_TARGET: &str = "lapin::returned_messages";
