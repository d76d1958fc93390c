//! The addresses that a cluster's brokers advertise, and whether this machine can reach them.
//!
//! The bootstrap servers only list the brokers; messages go to the addresses that the brokers
//! advertise. If these are for another network, a client connects but sends nothing.
//!
//! The addresses come from a debug line of librdkafka: once it knows the brokers, it drops the
//! connection to the bootstrap server, and its own function for the metadata then waits for a
//! broker that it cannot reach (2.12.1, `rd_kafka_metadata`).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::{FromClientConfigAndContext as _, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, DeliveryResult, NoCustomPartitioner, Producer as _, ProducerContext};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, spawn_blocking};

use super::config::Config;
use super::fault;
use super::login::Login;
use crate::inspect::InspectError;

/// Maximum time of one wait for the cluster's answer.
const SLICE: Duration = Duration::from_millis(20);

/// A broker's advertised address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// The broker's id.
    pub broker: i32,
    /// `host:port`.
    pub address: String,
    /// Why this machine cannot connect to it; `None` if it can.
    pub problem: Option<String>,
}

/// Asks the cluster which addresses its brokers advertise, and connects to each of them. Sends
/// nothing there. Cancel-safe.
///
/// # Errors
/// [`InspectError`] when the cluster does not answer, or a setting is wrong.
pub async fn listeners(config: &Config) -> Result<Vec<Listener>, InspectError> {
    let timeout = config.connect_timeout();
    let owned = config.clone();
    // Blocks: it reads secrets and certificates and waits for the cluster's answer.
    let advertised = spawn_blocking(move || advertised(&owned, timeout)).await;
    let advertised = advertised
        .map_err(|error| InspectError::broker(format!("asking kafka was interrupted: {error}")))??;
    let mut tries = JoinSet::new();
    for Advertised { broker, address } in advertised {
        tries.spawn(async move {
            let problem = unreached(&address, timeout).await;
            Listener { broker, address, problem }
        });
    }
    let mut listeners = tries.join_all().await;
    listeners.sort_by_key(|listener| listener.broker);
    Ok(listeners)
}

/// Connects to an address and closes the connection. Returns why that failed.
async fn unreached(address: &str, limit: Duration) -> Option<String> {
    match tokio::time::timeout(limit, TcpStream::connect(address)).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("no answer within {} ms", limit.as_millis())),
    }
}

fn advertised(config: &Config, limit: Duration) -> Result<Vec<Advertised>, InspectError> {
    let mut client = config.client().map_err(|error| InspectError::operator(error.to_string()))?;
    let login = Login::of(config, None)?;
    client.set("debug", "metadata").set_log_level(RDKafkaLogLevel::Debug);
    let producer = BaseProducer::from_config_and_context(&client, Told::default())
        .map_err(|error| InspectError::operator(fault::creation(&error)))?;
    login.give(producer.client())?;
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        producer.poll(SLICE);
        if let Some(brokers) = producer.context().all() {
            return Ok(brokers);
        }
    }
    Err(InspectError::broker("kafka did not say which brokers it has"))
}

/// A broker as the cluster describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Advertised {
    broker: i32,
    address: String,
}

/// Gathers the brokers of one answer.
#[derive(Debug, Default)]
struct Told(Mutex<Answer>);

#[derive(Debug, Default)]
struct Answer {
    len: Option<usize>,
    brokers: BTreeMap<usize, Advertised>,
}

impl Told {
    /// Returns the brokers once all of them are known.
    fn all(&self) -> Option<Vec<Advertised>> {
        let answer = self.lock();
        (answer.len? == answer.brokers.len()).then(|| answer.brokers.values().cloned().collect())
    }

    fn lock(&self) -> MutexGuard<'_, Answer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Told {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, text: &str) {
        if let Some(line) = Line::of(facility, text) {
            let mut answer = self.lock();
            answer.len = Some(line.len);
            answer.brokers.insert(line.index, line.advertised);
        }
    }

    // The caller reports a cluster that cannot be reached at all.
    fn error(&self, _: KafkaError, _: &str) {}
}

impl ProducerContext<NoCustomPartitioner> for Told {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

/// A debug line about one broker of an answer.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    index: usize,
    len: usize,
    advertised: Advertised,
}

impl Line {
    /// Reads `…  Broker #0/3: host:port NodeId 1`.
    fn of(facility: &str, text: &str) -> Option<Self> {
        let (_, told) = text.rsplit_once("Broker #").filter(|_| facility == "METADATA")?;
        let (place, told) = told.split_once(": ")?;
        let (index, len) = place.split_once('/')?;
        let (address, broker) = told.split_once(" NodeId ")?;
        let advertised = Advertised { broker: broker.trim().parse().ok()?, address: address.to_owned() };
        Some(Self { index: index.parse().ok()?, len: len.parse().ok()?, advertised })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_is_read_from_its_line() {
        let line = "[thrd:main]: 10.0.0.7:9092/bootstrap:   Broker #1/3: kafka-2.internal:29999 NodeId 12";
        let told = Told::default();
        told.log(RDKafkaLogLevel::Debug, "METADATA", line);
        let advertised = Advertised { broker: 12, address: String::from("kafka-2.internal:29999") };
        assert_eq!(Line::of("METADATA", line), Some(Line { index: 1, len: 3, advertised }));
        assert_eq!(told.all(), None, "two are missing");
        assert_eq!(Line::of("CONNECT", line), None);
        assert_eq!(Line::of("METADATA", "[thrd:main]: Topic orders changed id from a to b"), None);
    }
}
