//! Apache Kafka and librdkafka's mock cluster.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use brokers::kafka::{
    Admin, Config, Connector as KafkaConnector, GroupConfig, Partition, Subscriber, TopicPlan, mock,
};
use conformance::{Foreign, Redelivery};
use harness::plain::PlainRecord;
use harness::plain::kafka::{Kafka as PlainKafka, Reading};
use message::{Connector, MaxInFlightPerKey, Subscription};

use crate::backends::Backend;
use crate::brokers::{Broker, payloads};
use crate::stage::Stage;
use crate::trial::{Failure, Outcome};

/// Partitions of every topic: more than one, so that keys are spread over several.
const PARTITIONS: u16 = 3;
const PATIENCE: Duration = Duration::from_secs(120);

/// Apache Kafka, or librdkafka's mock cluster.
pub struct Kafka {
    stage: Stage,
    servers: String,
    mock: Option<mock::Mock>,
}

impl Kafka {
    /// Takes the cluster at `host:port,…`.
    #[must_use]
    pub fn new(stage: &Stage, servers: String) -> Self {
        Self { stage: stage.clone(), servers, mock: None }
    }

    /// Starts a mock cluster of one broker.
    ///
    /// # Errors
    /// librdkafka could not open its sockets.
    pub fn mock(stage: &Stage) -> Result<Self, Failure> {
        let mock = mock::Mock::start(1)?;
        Ok(Self { stage: stage.clone(), servers: mock.bootstrap_servers().join(","), mock: Some(mock) })
    }

    fn config(&self) -> Config {
        super::patient_kafka(&self.servers)
    }

    /// Returns a group with this topic. Of the mock it reads fixed partitions, because joining a
    /// group there takes three seconds.
    fn group(&self, group: &str, topic: &str) -> GroupConfig {
        if self.mock.is_none() {
            return GroupConfig::new(group, [topic]);
        }
        let mut fixed = GroupConfig::new(group, Vec::<String>::new());
        fixed.partitions =
            (0..PARTITIONS).map(|partition| Partition { topic: topic.to_owned(), partition }).collect();
        fixed
    }

    fn plain(&self) -> PlainKafka {
        PlainKafka::new(&self.servers)
    }
}

#[async_trait]
impl conformance::Broker for Kafka {
    fn topic_name(&self, prefix: &str) -> String {
        self.stage.unique(prefix)
    }

    async fn create_topic(&self, topic: &str) -> Outcome {
        if let Some(mock) = &self.mock {
            return Ok(mock.create_topic(topic, PARTITIONS)?);
        }
        create_kafka_topic(&self.stage, &self.config(), TopicPlan::new(topic, PARTITIONS)).await
    }

    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        Ok(Arc::new(KafkaConnector::new(self.config())?))
    }

    fn unreachable(&self) -> Result<Arc<dyn Connector>, Failure> {
        let mut config = Config::new(["127.0.0.1:1"]);
        config.connect_timeout_ms = 500;
        Ok(Arc::new(KafkaConnector::new(config)?))
    }

    async fn subscribe(
        &self,
        group: &str,
        topic: &str,
        _: Redelivery,
    ) -> Result<Box<dyn Subscription>, Failure> {
        Ok(Subscriber::new(self.config(), self.group(group, topic))?.subscribe().await?)
    }

    async fn payloads(&self, topic: &str, at_least: usize) -> Result<Vec<Vec<u8>>, Failure> {
        self.drain(topic, at_least).await.map(payloads)
    }

    async fn put(&self, topic: &str, foreign: &Foreign) -> Outcome {
        self.write(topic, super::foreign(foreign, "ce_")).await
    }

    fn oversize_bytes(&self) -> Option<usize> {
        Some(1_100_000)
    }
}

#[async_trait]
impl Broker for Kafka {
    fn backend(&self) -> Backend {
        if self.mock.is_some() { Backend::KafkaMock } else { Backend::Kafka }
    }

    fn max_in_flight_per_key(&self) -> MaxInFlightPerKey {
        MaxInFlightPerKey::Pipelined
    }

    fn relay_section(&self) -> Option<String> {
        let servers: Vec<String> = self.servers.split(',').map(|server| format!("{server:?}")).collect();
        let servers = servers.join(", ");
        Some(format!("[pipeline.kafka]\nbootstrap_servers = [{servers}]\nconnect_timeout_ms = 2000\n"))
    }

    async fn drain(&self, topic: &str, at_least: usize) -> Result<Vec<PlainRecord>, Failure> {
        let reading = Reading::default().at_least(at_least).silence(PATIENCE);
        Ok(self.plain().read_all(topic, reading).await?.iter().map(PlainRecord::from).collect())
    }

    async fn write(&self, topic: &str, record: PlainRecord) -> Outcome {
        self.plain().put(topic, &[record]).await
    }
}

/// Creates a topic and waits until the cluster lists it. It is removed with the stage.
///
/// # Errors
/// Kafka refused or is unavailable.
pub async fn create_kafka_topic(stage: &Stage, config: &Config, plan: TopicPlan) -> Outcome {
    let topic = plan.name.clone();
    let admin = Admin::new(config)?;
    admin.create_topics(&[plan]).await?;
    remove_kafka_topic(stage, config, &topic);
    // The controller knows a new topic before every broker answers for it.
    crate::eventually("the topic is listed", || async {
        let topics = admin.topics().await?;
        Ok(topics.iter().any(|(name, partitions)| *name == topic && *partitions > 0).then_some(()))
    })
    .await
}

/// Removes a topic at the end of the test.
pub fn remove_kafka_topic(stage: &Stage, config: &Config, topic: &str) {
    let config = config.clone();
    let topic = topic.to_owned();
    stage.afterwards(format!("topic {topic}"), async move {
        Ok(Admin::new(&config)?.delete_topics(&[&topic]).await?)
    });
}
