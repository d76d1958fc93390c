//! SQS, standard and FIFO.

use std::sync::Arc;

use async_trait::async_trait;
use brokers::sqs::{Admin, Config, Connector as SqsConnector, Subscriber};
use conformance::{Foreign, Redelivery};
use harness::plain::PlainRecord;
use harness::plain::sqs::{Outgoing, Sqs as PlainSqs};
use message::{Connector, MaxInFlightPerKey, Subscription};

use crate::backends::Backend;
use crate::brokers::{Broker, payloads};
use crate::facts::Order;
use crate::stage::{Stage, random};
use crate::trial::{Failure, Outcome};

const REGION: &str = "elasticmq";

/// SQS with one kind of queue.
pub struct Sqs {
    stage: Stage,
    endpoint: String,
    is_fifo: bool,
    plain: PlainSqs,
}

impl Sqs {
    /// Takes the server of a backend: [`Backend::SqsFifo`] with FIFO queues, others with standard
    /// queues.
    ///
    /// # Errors
    /// This run does not have it.
    pub async fn open(stage: &Stage, backend: Backend) -> Result<Self, Failure> {
        let endpoint = backend.address()?;
        let plain = PlainSqs::elasticmq(&endpoint).await;
        Ok(Self { stage: stage.clone(), endpoint, is_fifo: backend == Backend::SqsFifo, plain })
    }

    fn config(&self) -> Config {
        Config::default()
            .region(REGION)
            .endpoint_url(self.endpoint.clone())
            .access_key_id("test")
            .secret_access_key("test")
            .visibility_timeout_secs(10)
    }
}

#[async_trait]
impl conformance::Broker for Sqs {
    fn topic_name(&self, prefix: &str) -> String {
        format!("{}{}", self.stage.unique(prefix), if self.is_fifo { ".fifo" } else { "" })
    }

    async fn create_topic(&self, topic: &str) -> Outcome {
        create_sqs_queue(&self.stage, &self.config(), topic).await
    }

    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        Ok(Arc::new(SqsConnector::new(&self.config())?))
    }

    fn unreachable(&self) -> Result<Arc<dyn Connector>, Failure> {
        let nobody = self.config().endpoint_url("http://127.0.0.1:1").attempts(1).connect_timeout_ms(500);
        Ok(Arc::new(SqsConnector::new(&nobody)?))
    }

    async fn subscribe(
        &self,
        _: &str,
        topic: &str,
        redelivery: Redelivery,
    ) -> Result<Box<dyn Subscription>, Failure> {
        let visibility_timeout_secs = match redelivery {
            Redelivery::Late => 300,
            Redelivery::Soon => 2,
        };
        let config = self.config().poll_wait_secs(1).visibility_timeout_secs(visibility_timeout_secs);
        Ok(Subscriber::new(&config, topic)?.subscribe().await?)
    }

    async fn payloads(&self, topic: &str, at_least: usize) -> Result<Vec<Vec<u8>>, Failure> {
        self.drain(topic, at_least).await.map(payloads)
    }

    async fn put(&self, topic: &str, foreign: &Foreign) -> Outcome {
        self.write(topic, super::foreign(foreign, "")).await
    }

    fn oversize_bytes(&self) -> Option<usize> {
        Some((1 << 20) + 1)
    }

    async fn unsettled(&self, topic: &str) -> Result<Option<u64>, Failure> {
        Ok(Some(self.plain.counts(topic).await?.total()))
    }
}

#[async_trait]
impl Broker for Sqs {
    fn backend(&self) -> Backend {
        if self.is_fifo { Backend::SqsFifo } else { Backend::Sqs }
    }

    fn max_in_flight_per_key(&self) -> MaxInFlightPerKey {
        MaxInFlightPerKey::One
    }

    fn order(&self) -> Order {
        if self.is_fifo { Order::PerKey } else { Order::Free }
    }

    async fn join(&self, _: &str, topic: &str) -> Result<Box<dyn Subscription>, Failure> {
        Ok(Subscriber::new(&self.config(), topic)?.subscribe().await?)
    }

    fn relay_section(&self) -> Option<String> {
        Some(format!(
            "[pipeline.sqs]\nregion = {REGION:?}\nendpoint_url = {:?}\naccess_key_id = \"test\"\n\
             secret_access_key = \"test\"\n",
            self.endpoint
        ))
    }

    async fn drain(&self, topic: &str, at_least: usize) -> Result<Vec<PlainRecord>, Failure> {
        self.plain.take_all(topic, at_least).await?.iter().map(PlainRecord::try_from).collect()
    }

    async fn write(&self, topic: &str, record: PlainRecord) -> Outcome {
        let message = Outgoing::from(&record);
        let message = if self.is_fifo {
            let deduplication = random();
            let group = message.group.or_else(|| Some(deduplication.clone()));
            Outgoing { group, deduplication: Some(deduplication), ..message }
        } else {
            Outgoing { group: None, ..message }
        };
        self.plain.put(topic, &[message]).await
    }
}

/// Creates a queue. It is removed with the stage.
///
/// # Errors
/// The server refused or is unavailable.
pub async fn create_sqs_queue(stage: &Stage, config: &Config, queue: &str) -> Outcome {
    Admin::connect(config).await?.create_queue(queue).await?;
    let config = config.clone();
    let queue = queue.to_owned();
    stage.afterwards(format!("queue {queue}"), async move {
        Ok(Admin::connect(&config).await?.delete_queue(&queue).await?)
    });
    Ok(())
}
