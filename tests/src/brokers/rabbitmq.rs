//! RabbitMQ.

use std::sync::Arc;

use async_trait::async_trait;
use brokers::rabbitmq::{Admin, Config, Connector as RabbitmqConnector, QueueOptions, Subscriber};
use conformance::{Foreign, Redelivery};
use harness::plain::PlainRecord;
use harness::plain::rabbitmq::Rabbitmq as PlainRabbitmq;
use message::{Connector, MaxInFlightPerKey, Subscription};

use crate::backends::Backend;
use crate::brokers::{Broker, payloads};
use crate::stage::Stage;
use crate::trial::{Failure, Outcome};

/// RabbitMQ; a topic is a durable classic queue on the default exchange.
pub struct Rabbitmq {
    stage: Stage,
    url: String,
}

impl Rabbitmq {
    /// Takes the broker at `amqp://…`.
    #[must_use]
    pub fn new(stage: &Stage, url: String) -> Self {
        Self { stage: stage.clone(), url }
    }

    fn config(&self) -> Config {
        super::patient_rabbitmq(&self.url)
    }

    fn plain(&self) -> PlainRabbitmq {
        PlainRabbitmq::new(&self.url)
    }
}

#[async_trait]
impl conformance::Broker for Rabbitmq {
    fn topic_name(&self, prefix: &str) -> String {
        self.stage.unique(prefix)
    }

    async fn create_topic(&self, topic: &str) -> Outcome {
        create_rabbitmq_queue(&self.stage, &self.config(), topic, QueueOptions::default()).await
    }

    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        Ok(Arc::new(RabbitmqConnector::new(&self.config())?))
    }

    fn unreachable(&self) -> Result<Arc<dyn Connector>, Failure> {
        Ok(Arc::new(RabbitmqConnector::new(&Config::new("amqp://guest:guest@127.0.0.1:1/%2f"))?))
    }

    async fn subscribe(&self, _: &str, topic: &str, _: Redelivery) -> Result<Box<dyn Subscription>, Failure> {
        Ok(Subscriber::new(&self.config(), [topic])?.subscribe().await?)
    }

    async fn payloads(&self, topic: &str, at_least: usize) -> Result<Vec<Vec<u8>>, Failure> {
        self.drain(topic, at_least).await.map(payloads)
    }

    async fn put(&self, topic: &str, foreign: &Foreign) -> Outcome {
        self.write(topic, super::foreign(foreign, "cloudEvents_")).await
    }

    fn oversize_bytes(&self) -> Option<usize> {
        Some((16 << 20) + 1)
    }
}

#[async_trait]
impl Broker for Rabbitmq {
    fn backend(&self) -> Backend {
        Backend::Rabbitmq
    }

    fn max_in_flight_per_key(&self) -> MaxInFlightPerKey {
        MaxInFlightPerKey::One
    }

    fn relay_section(&self) -> Option<String> {
        Some(format!("[pipeline.rabbitmq]\nurl = {:?}\n", self.url))
    }

    async fn drain(&self, topic: &str, at_least: usize) -> Result<Vec<PlainRecord>, Failure> {
        Ok(self.plain().take_all(topic, at_least).await?.iter().map(PlainRecord::from).collect())
    }

    async fn write(&self, topic: &str, record: PlainRecord) -> Outcome {
        self.plain().put("", topic, &[record]).await
    }
}

/// Creates a queue. It is removed with the stage.
///
/// # Errors
/// The broker refused or is unavailable.
pub async fn create_rabbitmq_queue(
    stage: &Stage,
    config: &Config,
    queue: &str,
    options: QueueOptions,
) -> Outcome {
    let admin = Admin::connect(config).await?;
    admin.declare_queue(queue, options).await?;
    remove_rabbitmq_queue(stage, config, queue);
    admin.close().await;
    Ok(())
}

/// Removes a queue at the end of the test.
pub fn remove_rabbitmq_queue(stage: &Stage, config: &Config, queue: &str) {
    let config = config.clone();
    let queue = queue.to_owned();
    stage.afterwards(format!("queue {queue}"), async move {
        let admin = Admin::connect(&config).await?;
        admin.delete_queue(&queue).await?;
        admin.close().await;
        Ok(())
    });
}
