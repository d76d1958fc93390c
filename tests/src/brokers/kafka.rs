//! Apache Kafka and librdkafka's mock cluster.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use brokers::kafka::{
    Admin, Config, Connector as KafkaConnector, GroupConfig, Partition, Subscriber, TopicPlan, mock,
};
use conformance::{Foreign, Redelivery};
use message::{Connector, MaxInFlightPerKey, Subscription};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{Offset, TopicPartitionList};

use crate::backends::Backend;
use crate::brokers::{Broker, Record, payloads};
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

    fn plain(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        client
            .set("bootstrap.servers", &self.servers)
            .set("group.id", "plain")
            .set("enable.auto.commit", "false");
        client
    }

    fn read(client: &ClientConfig, topic: &str, at_least: usize) -> Result<Vec<Record>, Failure> {
        let consumer: BaseConsumer = client.create()?;
        let mut list = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            list.add_partition_offset(topic, i32::from(partition), Offset::Beginning)?;
        }
        consumer.assign(&list)?;
        let mut ends = 0;
        for partition in 0..PARTITIONS {
            let (low, high) = watermarks(&consumer, topic, partition)?;
            ends += usize::try_from(high - low)?;
        }
        let wanted = at_least.max(ends);
        let deadline = Instant::now() + PATIENCE;
        let mut records = Vec::new();
        while records.len() < wanted {
            if let Some(message) = consumer.poll(Duration::from_millis(100)) {
                records.push(record(&message?));
            } else if Instant::now() > deadline {
                return Err(format!("{} of {wanted} records of {topic} came", records.len()).into());
            }
        }
        Ok(records)
    }

    fn produce(client: &ClientConfig, topic: &str, record: &Record) -> Outcome {
        let producer: BaseProducer = client.create()?;
        let headers = record.headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header { key, value: Some(value) })
        });
        let base = BaseRecord::to(topic)
            .key(record.key.as_deref().unwrap_or_default())
            .payload(&record.payload)
            .headers(headers);
        producer.send(base).map_err(|(error, _)| error)?;
        producer.flush(PATIENCE)?;
        Ok(())
    }
}

fn record(message: &rdkafka::message::BorrowedMessage<'_>) -> Record {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
    Record {
        key: message.key().map(text),
        message_id: None,
        headers: headers.map(|h| (h.key.to_owned(), h.value.map(text).unwrap_or_default())).collect(),
        payload: message.payload().unwrap_or_default().to_vec(),
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
        let admin = Admin::new(&self.config())?;
        admin.create_topics(&[TopicPlan::new(topic, PARTITIONS)]).await?;
        // The controller knows a new topic before every broker answers for it.
        crate::eventually("the topic is listed", || async {
            let topics = admin.topics().await?;
            Ok(topics.iter().any(|(name, partitions)| name == topic && *partitions > 0).then_some(()))
        })
        .await?;
        let (config, topic) = (self.config(), topic.to_owned());
        self.stage.afterwards(format!("topic {topic}"), async move {
            Admin::new(&config)?.delete_topics(&[&topic]).await?;
            Ok(())
        });
        Ok(())
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
        self.write(topic, Record::foreign(foreign, "ce_")).await
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

    async fn drain(&self, topic: &str, at_least: usize) -> Result<Vec<Record>, Failure> {
        let (client, topic) = (self.plain(), topic.to_owned());
        tokio::task::spawn_blocking(move || Self::read(&client, &topic, at_least)).await?
    }

    async fn write(&self, topic: &str, record: Record) -> Outcome {
        let (client, topic) = (self.plain(), topic.to_owned());
        tokio::task::spawn_blocking(move || Self::produce(&client, &topic, &record)).await?
    }
}

/// Returns the bounds of a partition. Right after a topic is created, a broker may answer that it
/// does not lead the partition yet.
fn watermarks(consumer: &BaseConsumer, topic: &str, partition: u16) -> Result<(i64, i64), Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match consumer.fetch_watermarks(topic, i32::from(partition), PATIENCE) {
            Ok(bounds) => return Ok(bounds),
            Err(error) if is_new(&error) && Instant::now() < deadline => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_new(error: &rdkafka::error::KafkaError) -> bool {
    use rdkafka::error::RDKafkaErrorCode as Code;
    matches!(
        error.rdkafka_error_code(),
        Some(Code::NotLeaderForPartition | Code::LeaderNotAvailable | Code::UnknownTopicOrPartition)
    )
}
