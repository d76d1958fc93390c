//! Apache Kafka, through librdkafka.
//!
//! | promise | how it is kept |
//! |---|---|
//! | confirmed means durable | `acks=all`; a receipt is `Ok` only after the broker's own answer |
//! | one partition without a leader delays no other | each has a queue of its own for what cannot leave yet (`opening.rs`) |
//! | order per key, any number in flight | idempotent and gapless producer, unlimited delivery timeout, one partition opened at a time (`opening.rs`) |
//! | one bad message blames nobody else | a refused batch ends the session; the next one sends the suspects singly (`suspects.rs`) |
//! | a key lands where Java clients put it | `partitioner=murmur2_random` |
//! | every assigned partition is read, and no more than there is room for | one place decides what is paused (`reading.rs`) |
//! | nothing is skipped but by `start = "latest"`, once | `auto.offset.reset` is `earliest`; ends are committed before a new group joins (`beginning.rs`) |
//! | a topic that is made anew is read from its beginning, and order in it is protected anew | librdkafka tells of the other topic id (`log.rs`), and a new client begins; offsets carry the id of their topic (`topic_ids.rs`) |
//! | a topic that cannot be read stops no other | `availability.rs` |
//! | a renewed certificate is taken up | `handshakes.rs` |
//! | nothing is acknowledged before its effect | offsets are committed up to the first unsettled delivery of a partition (`ledger.rs`) |
//!
//! **Two kinds of session.** Normally messages go in batches and
//! [`MaxInFlightPerKey::Pipelined`](message::MaxInFlightPerKey) holds: with the first failure the
//! session is over. A message that is refused before it reaches librdkafka (too large, no such
//! topic) stops its key only, and the session goes on (`refused.rs`). After the broker has refused
//! a batch, the next session sends as many messages as were unconfirmed one by one
//! ([`MaxInFlightPerKey::One`](message::MaxInFlightPerKey)), reports the culprit exactly, and ends
//! to go back to batches.
//!
//! **Consuming.** A thread per subscription polls, so heartbeats and rebalances go on while a
//! handler works. When partitions go to another member, what is done is committed and the rest
//! forgotten: settling it later is skipped, it is delivered again elsewhere, and the inbox knows
//! it. A released delivery comes again at once, with everything after it in its partition. When
//! nobody takes what was fetched, reading is paused, and polling goes on for the sake of
//! rebalances.
//!
//! **Traps.** Idempotence spans one session only: a relay that restarts repeats what was
//! unconfirmed, and only the inbox removes it. `max.message.bytes` of a topic limits batches, not
//! only messages: keep `message_bytes_max` at or below the lowest one. Adding partitions to a topic
//! moves keys, and with them their order. A misspelt topic is created silently by brokers with
//! `auto.create.topics.enable`, unless `create_topics` stays off. `librdkafka` does not tell a
//! wrong password from a broker that speaks no SASL: both are the operator's fault here.
//!
//! [`Config`] says which cluster and how; [`Connector`] publishes; [`GroupConfig`] and
//! [`Subscriber`] consume; [`Admin`] makes topics; [`TopicReader`] reads them beside everybody
//! else; [`TransactionalConnector`] publishes in transactions; [`mock::Mock`] is a cluster inside
//! the process.

mod admin;
mod ahead;
mod availability;
mod beginning;
mod commits;
mod committed;
mod config;
mod connector;
mod cut_off;
mod evidence;
mod fault;
mod group;
mod handshakes;
mod inflow;
mod inspect;
mod lag;
mod ledger;
mod log;
pub mod mock;
mod offsets;
mod opening;
mod outcomes;
mod partitioner;
mod properties;
mod publisher;
mod pump;
mod reading;
mod refused;
mod session;
mod starts;
mod status;
mod subscriber;
mod subscription;
mod suspects;
#[cfg(test)]
mod tests;
mod topic_ids;
mod topic_reader;
mod topics;
mod transactions;
pub(crate) mod wire;

pub use admin::{Admin, AdminError, TopicPlan};
pub use committed::committed;
pub use config::{Compression, Config, Mechanism, Sasl};
pub use connector::Connector;
pub use group::{GroupConfig, Partition, Start};
pub use inspect::{Retained, TopicFacts, inspect};
pub use publisher::Publisher;
pub use status::{PartitionStatus, ReadStatus};
pub use subscriber::Subscriber;
pub use subscription::Subscription;
pub use topic_reader::{Begun, ReadTopic, TopicReader};
pub use transactions::{
    STATE_TOPIC, TransactionFacts, TransactionalConnector, crash_points, inspect_transactions, marks_topic,
};
