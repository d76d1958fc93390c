//! Every broker behind the same methods: topics, publishers, subscriptions, and a plain client that
//! does not know the toolkit's wire format.

pub mod committed;
mod http;
mod kafka;
mod memory;
mod rabbitmq;
mod sqs;

use std::sync::Arc;

use async_trait::async_trait;
use conformance::{Foreign, Redelivery};
use harness::plain::PlainRecord;
use message::{MaxInFlightPerKey, Subscription};

pub use http::Http;
pub use kafka::{Kafka, create_kafka_topic, remove_kafka_topic};
pub use memory::Memory;
pub use rabbitmq::{Rabbitmq, create_rabbitmq_queue, remove_rabbitmq_queue};
pub use sqs::{Sqs, create_sqs_queue};

use crate::backends::Backend;
use crate::facts::Order;
use crate::stage::Stage;
use crate::trial::{Failure, Outcome};

/// Connect timeout of an adapter under test. The adapter's default is too short when ten other
/// processes on the same machine starve the broker.
const CONNECT_TIMEOUT_MS: u64 = 120_000;

/// Configures the cluster at `host:port,…`, with long timeouts for a busy machine.
#[must_use]
pub fn patient_kafka(servers: &str) -> brokers::kafka::Config {
    let mut config = brokers::kafka::Config::new(servers.split(','));
    config.connect_timeout_ms = CONNECT_TIMEOUT_MS;
    config
}

/// Configures the broker at `amqp://…`, with long timeouts for a busy machine.
#[must_use]
pub fn patient_rabbitmq(url: &str) -> brokers::rabbitmq::Config {
    let mut config = brokers::rabbitmq::Config::new(url);
    config.connect_timeout_ms = CONNECT_TIMEOUT_MS;
    config
}

/// A broker that the suites run on: one that the crate `conformance` checks, with what only tests
/// of whole systems need. Its topics belong to the stage that it was opened on, and are removed
/// with it.
#[async_trait]
pub trait Broker: conformance::Broker {
    /// Returns its backend.
    fn backend(&self) -> Backend;

    /// Returns how many messages of a key its publisher may have in flight.
    fn max_in_flight_per_key(&self) -> MaxInFlightPerKey;

    /// Returns whether it keeps the order of a key.
    fn order(&self) -> Order {
        Order::PerKey
    }

    /// Subscribes to one topic as a service does. Unsettled messages of a lost member come again
    /// within ten seconds.
    async fn join(&self, group: &str, topic: &str) -> Result<Box<dyn Subscription>, Failure> {
        self.subscribe(group, topic, Redelivery::Soon).await
    }

    /// Returns its section of `relay.toml`; none for a broker that lives in the test's process
    /// only.
    fn relay_section(&self) -> Option<String>;

    /// Reads everything in a topic with a plain client, in order where the broker keeps one. Waits
    /// for at least `at_least` records. Queues lose the records that are read.
    async fn drain(&self, topic: &str, at_least: usize) -> Result<Vec<PlainRecord>, Failure>;

    /// Writes a record to a topic with a plain client.
    async fn write(&self, topic: &str, record: PlainRecord) -> Outcome;
}

/// Returns the record of a producer that does not use the toolkit. `prefix` is that of attributes
/// in the broker's CloudEvents binding.
fn foreign(foreign: &Foreign, prefix: &str) -> PlainRecord {
    let attributes = [
        ("specversion", Some("1.0")),
        ("type", Some("t")),
        ("datacontenttype", Some("text/plain")),
        ("id", foreign.id.as_deref()),
    ];
    let given = attributes.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let prefixed = given.map(|(name, value)| (format!("{prefix}{name}"), value.to_owned()));
    PlainRecord {
        key: Some(foreign.key.clone()),
        message_id: None,
        headers: prefixed.chain([foreign.header.clone()]).collect(),
        payload: foreign.payload.clone(),
    }
}

/// Returns the payloads of records.
fn payloads(records: Vec<PlainRecord>) -> Vec<Vec<u8>> {
    records.into_iter().map(|record| record.payload).collect()
}

/// Opens the broker of a backend. Its topics are removed with the stage.
///
/// # Errors
/// This run does not have it, or its client could not be created.
pub async fn open(stage: &Stage, backend: Backend) -> Result<Arc<dyn Broker>, Failure> {
    Ok(match backend {
        Backend::Memory => Arc::new(Memory::new(stage, MaxInFlightPerKey::One)),
        Backend::KafkaMock => Arc::new(Kafka::mock(stage)?),
        Backend::Kafka => Arc::new(Kafka::new(stage, backend.address()?)),
        Backend::Rabbitmq => Arc::new(Rabbitmq::new(stage, backend.address()?)),
        Backend::Sqs | Backend::SqsFifo => Arc::new(Sqs::open(stage, backend).await?),
        other => return Err(format!("{other} is not a broker").into()),
    })
}
