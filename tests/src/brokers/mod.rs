//! Every broker behind the same methods: topics, publishers, subscriptions, and a plain client that
//! does not know the toolkit's wire format.

pub mod committed;
mod kafka;
mod memory;
mod rabbitmq;
mod sqs;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use message::{Connector, MaxInFlightPerKey, Subscription};

pub use kafka::{Kafka, KafkaMock};
pub use memory::Memory;
pub use rabbitmq::Rabbitmq;
pub use sqs::Sqs;

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

/// A broker that the suites run on.
#[async_trait]
pub trait Broker: Send + Sync {
    /// Returns its backend.
    fn backend(&self) -> Backend;

    /// Returns how many messages of a key its publisher may have in flight.
    fn max_in_flight_per_key(&self) -> MaxInFlightPerKey;

    /// Returns whether it keeps the order of a key.
    fn order(&self) -> Order {
        Order::PerKey
    }

    /// Returns a topic name of the test's own that does not exist yet.
    fn topic_name(&self, stage: &Stage, prefix: &str) -> String {
        stage.unique(prefix)
    }

    /// Creates a topic; it is removed with the stage.
    async fn create_topic(&self, stage: &Stage, topic: &str) -> Outcome;

    /// Returns a connector with the right settings.
    fn connector(&self) -> Result<Arc<dyn Connector>, Failure>;

    /// Returns a connector to an address on which nothing listens.
    fn unreachable(&self) -> Result<Arc<dyn Connector>, Failure>;

    /// Returns a connector with wrong credentials; none where the broker under test needs no
    /// credentials.
    fn wrong_credentials(&self) -> Option<Result<Arc<dyn Connector>, Failure>> {
        None
    }

    /// Subscribes to one topic as a member of a group.
    async fn subscribe(&self, group: &str, topic: &str) -> Result<Box<dyn Subscription>, Failure>;

    /// Returns its section of `relay.toml`; none for a broker that lives in the test's process
    /// only.
    fn relay_section(&self) -> Option<String>;

    /// Returns a payload size in bytes that the broker or its client refuses.
    fn oversize_bytes(&self) -> Option<usize>;

    /// Reads everything in a topic with a plain client, in order where the broker keeps one. Waits
    /// for at least `at_least` records. Queues lose the records that are read.
    async fn drain(&self, topic: &str, at_least: usize) -> Result<Vec<Record>, Failure>;

    /// Writes a record to a topic with a plain client.
    async fn put(&self, topic: &str, record: Record) -> Outcome;
}

/// A record as a plain client sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// The broker's own key or group.
    pub key: Option<String>,
    /// The broker's own message id, where it has one.
    pub message_id: Option<String>,
    /// Headers, properties, and for SQS the members of the CloudEvent around the data.
    pub headers: BTreeMap<String, String>,
    /// The payload.
    pub payload: Vec<u8>,
}

/// Opens the broker of a backend.
///
/// # Errors
/// This run does not have it, or its client could not be created.
pub async fn open(backend: Backend) -> Result<Arc<dyn Broker>, Failure> {
    Ok(match backend {
        Backend::Memory => Arc::new(Memory::new(MaxInFlightPerKey::One)),
        Backend::KafkaMock => Arc::new(KafkaMock::start()?),
        Backend::Kafka => Arc::new(Kafka::new(backend.address()?)),
        Backend::Rabbitmq => Arc::new(Rabbitmq::new(backend.address()?)),
        Backend::Sqs => Arc::new(Sqs::standard(backend.address()?).await),
        Backend::SqsFifo => Arc::new(Sqs::fifo(backend.address()?).await),
        other => return Err(format!("{other} is not a broker").into()),
    })
}
