//! Apache Kafka and librdkafka's mock cluster.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use brokers::kafka::{
    Admin, Config, Connector as KafkaConnector, GroupConfig, Partition, Subscriber, TopicPlan, mock,
};
use message::{Connector, MaxInFlightPerKey, Subscription};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{Offset, TopicPartitionList};

use crate::backends::Backend;
use crate::brokers::{Broker, Record};
use crate::stage::Stage;
use crate::trial::{Failure, Outcome};

/// Partitions of every topic: more than one, so that keys are spread over several.
const PARTITIONS: u16 = 3;
const PATIENCE: Duration = Duration::from_secs(120);

/// Apache Kafka.
pub struct Kafka {
    servers: String,
}

/// librdkafka's mock cluster.
pub struct KafkaMock {
    cluster: mock::Mock,
    kafka: Kafka,
}

impl Kafka {
    /// Takes the cluster at `host:port,…`.
    #[must_use]
    pub fn new(servers: String) -> Self {
        Self { servers }
    }

    fn config(&self) -> Config {
        super::patient_kafka(&self.servers)
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

    fn write(client: &ClientConfig, topic: &str, record: &Record) -> Outcome {
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
impl Broker for Kafka {
    fn backend(&self) -> Backend {
        Backend::Kafka
    }

    fn max_in_flight_per_key(&self) -> MaxInFlightPerKey {
        MaxInFlightPerKey::Pipelined
    }

    async fn create_topic(&self, stage: &Stage, topic: &str) -> Outcome {
        let admin = Admin::new(&self.config())?;
        admin.create_topics(&[TopicPlan::new(topic, PARTITIONS)]).await?;
        // The controller knows a new topic before every broker answers for it.
        crate::eventually("the topic is listed", || async {
            let topics = admin.topics().await?;
            Ok(topics.iter().any(|(name, partitions)| name == topic && *partitions > 0).then_some(()))
        })
        .await?;
        let (config, topic) = (self.config(), topic.to_owned());
        stage.afterwards(format!("topic {topic}"), async move {
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

    async fn subscribe(&self, group: &str, topic: &str) -> Result<Box<dyn Subscription>, Failure> {
        let group = GroupConfig::new(group, [topic]);
        Ok(Subscriber::new(self.config(), group)?.subscribe().await?)
    }

    fn relay_section(&self) -> Option<String> {
        let servers: Vec<String> = self.servers.split(',').map(|server| format!("{server:?}")).collect();
        let servers = servers.join(", ");
        Some(format!("[pipeline.kafka]\nbootstrap_servers = [{servers}]\nconnect_timeout_ms = 2000\n"))
    }

    fn oversize_bytes(&self) -> Option<usize> {
        Some(1_100_000)
    }

    async fn drain(&self, topic: &str, at_least: usize) -> Result<Vec<Record>, Failure> {
        let (client, topic) = (self.plain(), topic.to_owned());
        tokio::task::spawn_blocking(move || Self::read(&client, &topic, at_least)).await?
    }

    async fn put(&self, topic: &str, record: Record) -> Outcome {
        let (client, topic) = (self.plain(), topic.to_owned());
        tokio::task::spawn_blocking(move || Self::write(&client, &topic, &record)).await?
    }
}

impl KafkaMock {
    /// Starts a cluster of one broker.
    ///
    /// # Errors
    /// librdkafka could not open its sockets.
    pub fn start() -> Result<Self, Failure> {
        let cluster = mock::Mock::start(1)?;
        let kafka = Kafka::new(cluster.bootstrap_servers().join(","));
        Ok(Self { cluster, kafka })
    }

    /// Reads the partitions without joining the group: a join takes the mock three seconds.
    fn group(group: &str, topic: &str) -> GroupConfig {
        let mut fixed = GroupConfig::new(group, Vec::<String>::new());
        fixed.partitions =
            (0..PARTITIONS).map(|partition| Partition { topic: topic.to_owned(), partition }).collect();
        fixed
    }
}

#[async_trait]
impl Broker for KafkaMock {
    fn backend(&self) -> Backend {
        Backend::KafkaMock
    }

    fn max_in_flight_per_key(&self) -> MaxInFlightPerKey {
        MaxInFlightPerKey::Pipelined
    }

    async fn create_topic(&self, _: &Stage, topic: &str) -> Outcome {
        Ok(self.cluster.create_topic(topic, PARTITIONS)?)
    }

    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        self.kafka.connector()
    }

    fn unreachable(&self) -> Result<Arc<dyn Connector>, Failure> {
        self.kafka.unreachable()
    }

    async fn subscribe(&self, group: &str, topic: &str) -> Result<Box<dyn Subscription>, Failure> {
        let subscriber = Subscriber::new(self.kafka.config(), Self::group(group, topic))?;
        Ok(subscriber.subscribe().await?)
    }

    fn relay_section(&self) -> Option<String> {
        self.kafka.relay_section()
    }

    fn oversize_bytes(&self) -> Option<usize> {
        self.kafka.oversize_bytes()
    }

    async fn drain(&self, topic: &str, at_least: usize) -> Result<Vec<Record>, Failure> {
        self.kafka.drain(topic, at_least).await
    }

    async fn put(&self, topic: &str, record: Record) -> Outcome {
        self.kafka.put(topic, record).await
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
