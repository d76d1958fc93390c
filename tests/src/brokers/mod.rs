//! Every broker with the same verbs: topics, publishers, subscriptions, and a plain client that
//! knows nothing of the toolkit's wire format.

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

/// How long an adapter under test waits for its broker: its default is meant for a broker that is
/// not starved by ten other processes on the same machine.
const CONNECT_TIMEOUT_MS: u64 = 120_000;

/// The cluster at `host:port,…`, with patience for a busy machine.
#[must_use]
pub fn patient_kafka(servers: &str) -> brokers::kafka::Config {
    let mut config = brokers::kafka::Config::new(servers.split(','));
    config.connect_timeout_ms = CONNECT_TIMEOUT_MS;
    config
}

/// The broker at `amqp://…`, with patience for a busy machine.
#[must_use]
pub fn patient_rabbitmq(url: &str) -> brokers::rabbitmq::Config {
    let mut config = brokers::rabbitmq::Config::new(url);
    config.connect_timeout_ms = CONNECT_TIMEOUT_MS;
    config
}

/// A broker that the suites run on.
#[async_trait]
pub trait Broker: Send + Sync {
    /// Which one.
    fn backend(&self) -> Backend;

    /// How many messages of a key its publisher may have in flight.
    fn max_in_flight_per_key(&self) -> MaxInFlightPerKey;

    /// Whether it keeps the order of a key.
    fn order(&self) -> Order {
        Order::PerKey
    }

    /// A topic name of the test's own that does not exist yet.
    fn topic_name(&self, stage: &Stage, prefix: &str) -> String {
        stage.unique(prefix)
    }

    /// Makes a topic; it goes with the stage.
    async fn create_topic(&self, stage: &Stage, topic: &str) -> Outcome;

    /// A connector with the right settings.
    fn connector(&self) -> Result<Arc<dyn Connector>, Failure>;

    /// A connector that nobody answers.
    fn unreachable(&self) -> Result<Arc<dyn Connector>, Failure>;

    /// A connector with wrong credentials; none where the broker under test asks for no
    /// credentials.
    fn wrong_credentials(&self) -> Option<Result<Arc<dyn Connector>, Failure>> {
        None
    }

    /// Subscribes to one topic as a member of a group.
    async fn subscribe(&self, group: &str, topic: &str) -> Result<Box<dyn Subscription>, Failure>;

    /// The section of `relay.toml`; none for a broker that lives in the test's process only.
    fn relay_section(&self) -> Option<String>;

    /// The bytes of a payload that the broker or its client refuses.
    fn oversize_bytes(&self) -> Option<usize>;

    /// Everything in a topic, in order where the broker has one, read with a plain client; at least
    /// `at_least` records are waited for. Consuming brokers lose them by this.
    async fn drain(&self, topic: &str, at_least: usize) -> Result<Vec<Record>, Failure>;

    /// Puts a record there with a plain client.
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

/// The broker behind a name.
///
/// # Errors
/// It is not there, or its client could not be made.
pub async fn open(backend: Backend) -> Result<Arc<dyn Broker>, Failure> {
    Ok(match backend {
        Backend::Memory => Arc::new(Memory::new(MaxInFlightPerKey::One)),
        Backend::KafkaMock => Arc::new(KafkaMock::start()?),
        Backend::Kafka => Arc::new(Kafka::new(backend.address()?)),
        Backend::Rabbitmq => Arc::new(Rabbitmq::new(backend.address()?)),
        Backend::Sqs => Arc::new(Sqs::standard(backend.address()?).await),
        Backend::SqsFifo => Arc::new(Sqs::fifo(backend.address()?).await),
        other => return Err(format!("{other} is no broker").into()),
    })
}
