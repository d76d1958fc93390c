//! Opens publishing sessions.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use message::{CONNECT_MAX_DEFAULT, Fault, FaultScope, PublishError, Receipts};
use rdkafka::ClientConfig;
use tokio::task::spawn_blocking;

use super::config::{Config, STATISTICS_EVERY_MS};
use super::last_error::LastError;
use super::login::Login;
use super::opening::{BATCH_MESSAGES_MAX, Batches};
use super::outcomes::Outcomes;
use super::publisher::Publisher;
use super::session::Session;
use super::suspects::Suspects;
use crate::settings::InvalidSetting;

/// Generous time to create a client.
const CLIENT_MAX: Duration = Duration::from_secs(10);

/// Connects to a Kafka cluster.
#[derive(Debug)]
pub struct Connector {
    config: Config,
    destination: String,
    suspects: Arc<Suspects>,
    /// That of the current session.
    last_error: Mutex<Arc<LastError>>,
}

impl Connector {
    /// Creates a connector for this cluster. Does not connect or open files yet: files are read on
    /// every connect.
    ///
    /// # Errors
    /// [`InvalidSetting`] as for [`Config::check`], except for files.
    pub fn new(config: Config) -> Result<Self, InvalidSetting> {
        config.check_settings()?;
        config.warn();
        let destination = config.destination();
        Ok(Self { config, destination, suspects: Arc::default(), last_error: Mutex::default() })
    }
}

#[async_trait]
impl message::Connector for Connector {
    fn destination(&self) -> &str {
        &self.destination
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn message::Publisher>, PublishError> {
        let singles = self.suspects.take();
        let batches = singles.is_none();
        let sizes = batches.then(|| Batches::of(&self.config));
        let outcomes = Outcomes::new(receipts, sizes, Arc::clone(&self.suspects));
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = outcomes.errors();
        let (config, destination) = (self.config.clone(), self.destination.clone());
        // Blocks: it reads secrets and certificates, and waits for a token and for the cluster's
        // first answer. If this future is dropped, the session opened there is dropped with the
        // result.
        let opened = spawn_blocking(move || {
            let mut client = producer(&config, batches).map_err(operator)?;
            // The statistics show when the client has lost its brokers (`cut_off.rs`).
            client.set("statistics.interval.ms", STATISTICS_EVERY_MS);
            outcomes.watch(&config, &mut client);
            let session = Session::open(&client, outcomes, Login::of(&config, None)?)?;
            session.reach(config.connect_timeout(), &destination)?;
            Ok::<Session, PublishError>(session)
        });
        let session = opened.await.map_err(|error| {
            PublishError::session_lost("connecting to kafka was interrupted").with_source(error)
        })??;
        Ok(Box::new(Publisher::new(session, self.config.clone(), singles)))
    }

    fn connect_max(&self) -> Duration {
        // Besides waiting for a token and for the cluster, only files are read.
        CONNECT_MAX_DEFAULT.max(Login::max(&self.config) + self.config.connect_timeout() + CLIENT_MAX)
    }

    fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).recent(Instant::now())
    }
}

pub(super) fn operator(error: InvalidSetting) -> PublishError {
    PublishError::new(Fault::Operator, FaultScope::Session, error.to_string()).with_source(error)
}

/// Returns the producer's properties: the operator's, overridden by those that the guarantees
/// depend on.
pub(super) fn producer(config: &Config, batches: bool) -> Result<ClientConfig, InvalidSetting> {
    let mut client = config.client()?;
    client
        .set("acks", "all")
        .set("enable.idempotence", "true")
        // A refused message stops the producer, so that no later message of its key passes it. In
        // one-by-one mode the caller keeps the order, and other messages may continue.
        .set("enable.gapless.guarantee", if batches { "true" } else { "false" })
        // Unlimited: a timeout in the middle would let later messages pass (1, 4, 5 arrive, 2 and 3
        // do not).
        .set("message.timeout.ms", "0")
        // The partitioner of Java clients, so that keys land where other producers put them.
        .set("partitioner", "murmur2_random")
        .set("linger.ms", if batches { config.linger_ms.to_string() } else { String::from("0") })
        .set("batch.num.messages", if batches { BATCH_MESSAGES_MAX.to_string() } else { String::from("1") })
        .set("compression.type", config.compression.as_str())
        .set("message.max.bytes", config.message_bytes_max.to_string())
        .set("queue.buffering.max.messages", "0")
        .set("queue.buffering.max.kbytes", (config.queue_bytes_max >> 10).to_string())
        .set("allow.auto.create.topics", if config.create_topics { "true" } else { "false" });
    Ok(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_has_the_time_that_its_setting_allows() {
        let within = |millis| {
            let config = Config::new(["127.0.0.1:1"]).connect_timeout_ms(millis);
            message::Connector::connect_max(&Connector::new(config).unwrap())
        };
        assert_eq!((within(5_000), within(600_000)), (Duration::from_secs(30), Duration::from_secs(610)));
    }

    #[test]
    fn the_guarantees_are_set_whatever_the_operator_writes() {
        let mut config = Config::new(["127.0.0.1:9092"]);
        config.properties.insert(String::from("socket.keepalive.enable"), String::from("true").into());
        let client = producer(&config, true).unwrap();
        for (name, value) in [
            ("acks", "all"),
            ("enable.idempotence", "true"),
            ("enable.gapless.guarantee", "true"),
            ("message.timeout.ms", "0"),
            ("partitioner", "murmur2_random"),
            ("socket.keepalive.enable", "true"),
        ] {
            assert_eq!(client.get(name), Some(value), "{name}");
        }
        assert!(client.create_native_config().is_ok());
        assert_eq!(producer(&config, false).unwrap().get("batch.num.messages"), Some("1"));
    }
}
