//! Apache Kafka, through librdkafka.
//!
//! | promise | how it is kept |
//! |---|---|
//! | confirmed means durable | `acks=all`; a receipt is `Ok` only after the broker's own answer |
//! | a partition without a leader delays no other | each has its own queue for messages that cannot leave yet (`opening.rs`) |
//! | order per key, any number in flight | idempotent and gapless producer, unlimited delivery timeout, one partition opened at a time (`opening.rs`) |
//! | a bad message takes no other with it | a refused batch ends the session; the next one sends the suspects one by one (`suspects.rs`), unless the message was alone |
//! | a key lands where Java clients put it | `partitioner=murmur2_random` |
//! | every assigned partition is read, and prefetching is bounded | one place decides what is paused (`reading.rs`) |
//! | messages are skipped only by `start = "latest"`, once | `auto.offset.reset` is `earliest`; ends are committed before a new group joins (`beginning.rs`) |
//! | a recreated topic is read from its beginning, and its order is protected from the start | librdkafka reports the new topic id (`log.rs`), and a new client begins; offsets carry the id of their topic (`topic_ids.rs`) |
//! | a topic that cannot be read stops no other | `availability.rs` |
//! | a batch that cannot be read is not skipped | the subscription ends there (`inflow.rs`), and so does the search for the last mark; `check.crcs`, which makes librdkafka skip, is refused |
//! | a renewed certificate is used | `handshakes.rs` |
//! | nothing is acknowledged before its effect | offsets are committed up to the first unsettled delivery of a partition (`ledger.rs`) |
//!
//! **Two kinds of session.** Normally messages are sent in batches and
//! [`MaxInFlightPerKey::Pipelined`](message::MaxInFlightPerKey) holds: the first failure ends the
//! session. A message that is refused before it reaches librdkafka (too large, no such topic) stops
//! only its key, and the session continues (`refused.rs`). After the broker has refused a batch,
//! the next session sends as many messages as were unconfirmed one by one
//! ([`MaxInFlightPerKey::One`](message::MaxInFlightPerKey)). It reports the culprit exactly, and
//! ends to return to batches.
//!
//! **Consuming.** A thread per subscription polls, so heartbeats and rebalances continue while a
//! handler works. When partitions move to another member, positions that are done are committed and
//! the rest is forgotten. A later settlement is ignored; the message is delivered again elsewhere,
//! and the inbox recognizes it. A released delivery is redelivered at once, with everything after
//! it in its partition. When the consumer does not take prefetched messages, reading is paused, and
//! polling continues for the sake of rebalances.
//!
//! **Traps.** Idempotence spans one session only: a relay that restarts publishes unconfirmed
//! messages again, and only the inbox removes the duplicates. `max.message.bytes` of a topic limits
//! batches, not only messages: keep `message_bytes_max` at or below the lowest one. Adding
//! partitions to a topic moves keys, and with them their order. Brokers with
//! `auto.create.topics.enable` create a misspelt topic silently, unless `create_topics` stays off.
//! librdkafka does not distinguish a wrong password from a broker that does not speak SASL: both
//! are the operator's fault here.
//!
//! [`Config`] names the cluster and its settings; [`Connector`] publishes; [`GroupConfig`] and
//! [`Subscriber`] consume; [`Admin`] creates topics; [`TopicReader`] reads topics without a group;
//! [`TransactionalConnector`] publishes in transactions; `mock::Mock` is an in-process cluster for
//! tests.

mod admin;
mod ahead;
mod availability;
mod beginning;
mod callbacks;
mod commits;
mod committed;
mod config;
mod connector;
mod cut_off;
mod evidence;
mod fault;
mod fixed;
mod group;
mod handshakes;
mod inflow;
mod inspect;
mod lag;
mod last_error;
mod ledger;
mod listeners;
mod log;
mod login;
#[doc(hidden)]
pub mod mock;
#[cfg(feature = "kafka-aws")]
mod msk;
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
pub use config::{Aws, Compression, Config, Mechanism, Sasl};
pub use connector::Connector;
pub use group::{GroupConfig, Partition, Start};
pub use inspect::{Retained, TopicFacts, inspect};
pub use listeners::{Listener, listeners};
#[doc(hidden)]
pub use log::RECORDS_LOST;
pub use status::{PartitionStatus, ReadStatus};
pub use subscriber::Subscriber;
pub use topic_reader::{Begun, ReadTopic, TopicReader};
#[doc(hidden)]
pub use transactions::crash_points;
pub use transactions::{
    STATE_TOPIC, TransactionFacts, TransactionalConnector, inspect_transactions, marks_topic,
};
