//! Amazon SQS and servers that speak its protocol, standard and FIFO queues.
//!
//! | file | what it holds |
//! |---|---|
//! | `config.rs` | [`Config`]: the operator's settings |
//! | `client.rs` | creates the SDK's client from the settings |
//! | `encrypted.rs` | a last check before a request is sent: encrypted, or on this machine |
//! | `queues.rs` | which queue a topic goes to, and its URL |
//! | `connector.rs` | [`Connector`]: opens publishing sessions |
//! | `publisher.rs` | one session: encodes and addresses submissions |
//! | `dispatcher.rs` | keeps a bounded number of requests in flight |
//! | `backlog.rs` | messages that wait for one queue, and the choice of those sent together |
//! | `limits.rs` | how many requests a queue may have in flight: fewer while SQS throttles it |
//! | `answers.rs` | which queues answer, to determine the scope of a missing answer |
//! | `send.rs` | one batch and the answer for each of its messages |
//! | `subscription.rs` | [`Subscriber`]: consumes a queue |
//! | `receive.rs` | one receive request |
//! | `settle.rs` | deleting, releasing and extending deliveries |
//! | `throttle.rs` | makes requests again that SQS throttles |
//! | `wire.rs` | message to CloudEvent in JSON and back |
//! | `fault.rs` | classifies the SDK's errors |
//! | `inspect.rs` | the attributes of the queues, for `relay doctor` |
//! | `admin.rs` | [`Admin`]: queues for tests, examples and the demo |
//!
//! # Publishing
//! The topic is the queue's name, unless `queues` names another one or its URL. Batches hold up to
//! 10 messages, and every entry of an answer is checked: SQS returns 200 even when it refused some
//! of them.
//!
//! | what happens | receipt |
//! |---|---|
//! | no such queue, no permission, its key disabled | operator's fault, topic stops |
//! | throttled for half a minute, an entry failed on SQS' side | broker's fault, topic pauses |
//! | too large, contents refused | message's fault; the others of its batch are sent |
//! | no answer in time, but other queues answer | broker's fault, topic pauses; outcome unknown |
//! | no answer, or none in time | broker's fault, session; outcome unknown |
//! | a proxy answers by itself (403, 429, no error code) | operator's or broker's fault, topic stops or pauses |
//! | wrong or missing credentials, no region | operator's fault, session |
//!
//! On a FIFO queue the deduplication id is the message id and a digest of content and headers. SQS
//! remembers it for 5 minutes, the inbox for longer. The group is the ordering key, hashed where
//! SQS would not accept it. A message without a key is a separate group. At most one message of a
//! group is in flight. A standard queue keeps no order.
//!
//! # The body
//! One CloudEvent in JSON, with `id`, `source`, `type`, `time` and `subject` at the top level; see
//! `wire.rs`.
//!
//! # Consuming
//! Messages are received by long polls: one while the queue is quiet, several while it is busy. An
//! unsettled delivery is redelivered after `visibility_timeout_secs`: call `keep_alive` well before
//! that.
//!
//! # Traps
//! - A FIFO group is locked while one of its messages is received and unsettled, even by a consumer
//!   that died: its visibility timeout must expire first.
//! - A redrive policy moves a message to the dead-letter queue after `maxReceiveCount` receives,
//!   handled or not: set it well above the attempts of the inbox.
//! - Retention is 4 days by default and 14 days at most; the inbox must remember ids for longer.
//! - Receipt handles of a consumer that was too slow are ignored; the message is redelivered, and
//!   the inbox recognizes it.

mod admin;
mod answers;
mod backlog;
mod client;
mod config;
mod connector;
mod dispatcher;
mod encrypted;
mod evidence;
mod fault;
mod inspect;
mod lag;
mod limits;
mod publisher;
mod queues;
mod receive;
mod send;
mod settle;
mod subscription;
mod throttle;
pub(crate) mod wire;

pub use admin::Admin;
pub use config::Config;
pub use connector::Connector;
pub use inspect::{QueueFacts, Redrive, inspect};
pub use subscription::Subscriber;
