//! RabbitMQ.

use std::sync::Arc;

use async_trait::async_trait;
use brokers::oauth::OAuth;
use brokers::rabbitmq::{Admin, Config, Connector as RabbitmqConnector, QueueOptions, Subscriber};
use conformance::{Foreign, Redelivery};
use harness::plain::PlainRecord;
use harness::plain::rabbitmq::Rabbitmq as PlainRabbitmq;
use message::{Connector, MaxInFlightPerKey, Subscription};
use secrecy::ExposeSecret as _;

use crate::backends::Backend;
use crate::brokers::{Broker, payloads};
use crate::rabbitmq_node::RabbitmqNode;
use crate::stage::Stage;
use crate::trial::{Failure, Outcome};

/// RabbitMQ; a topic is a durable classic queue on the default exchange.
pub struct Rabbitmq {
    stage: Stage,
    url: String,
    /// The URL without a user, and the source of the tokens with which publishers and subscribers
    /// log in.
    tokens: Option<(String, OAuth)>,
}

impl Rabbitmq {
    /// Takes the broker at `amqp://…`.
    #[must_use]
    pub fn new(stage: &Stage, url: String) -> Self {
        Self { stage: stage.clone(), url, tokens: None }
    }

    /// Takes a node that accepts tokens. Queues are made and read by its administrator.
    #[must_use]
    pub fn with_tokens(stage: &Stage, node: &RabbitmqNode, oauth: OAuth) -> Self {
        let tokens = Some((format!("amqp://{}/%2f", node.address()), oauth));
        Self { stage: stage.clone(), url: node.url(), tokens }
    }

    fn config(&self) -> Config {
        super::patient_rabbitmq(&self.url)
    }

    /// Returns the settings of publishers and subscribers.
    #[must_use]
    pub fn client(&self) -> Config {
        match &self.tokens {
            Some((url, oauth)) => super::patient_rabbitmq(url).oauth(oauth.clone()),
            None => self.config(),
        }
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
        Ok(Arc::new(RabbitmqConnector::new(&self.client())?))
    }

    fn unreachable(&self) -> Result<Arc<dyn Connector>, Failure> {
        Ok(Arc::new(RabbitmqConnector::new(&Config::new("amqp://guest:guest@127.0.0.1:1/%2f"))?))
    }

    async fn subscribe(&self, _: &str, topic: &str, _: Redelivery) -> Result<Box<dyn Subscription>, Failure> {
        Ok(Subscriber::new(&self.client(), [topic])?.subscribe().await?)
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
        let Some((url, oauth)) = &self.tokens else {
            return Some(format!("[pipeline.rabbitmq]\nurl = {:?}\n", self.url));
        };
        let secret = oauth.client_secret.as_ref().map(|secret| secret.expose_secret().to_owned());
        let client = serde_json::json!({
            "token_url": oauth.token_url, "client_id": oauth.client_id, "client_secret": secret,
            "ca_file": oauth.ca_file, "timeout_ms": oauth.timeout_ms,
        });
        let mut section = format!("[pipeline.rabbitmq]\nurl = {url:?}\n[pipeline.rabbitmq.oauth]\n");
        for (name, value) in client.as_object()? {
            section.push_str(&format!("{name} = {value}\n"));
        }
        Some(section)
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
