//! Kafka: a bare `ThreadedProducer` with its delivery callback.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use brokers::kafka;
use harness::plain::PlainRecord;
use harness::plain::kafka::{Kafka as PlainKafka, Reading};
use message::{Connector, Transactions};
use rdkafka::ClientConfig;
use rdkafka::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, NoCustomPartitioner, Producer, ProducerContext, ThreadedProducer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{Rows, Target};
use crate::Failure;
use crate::rig::variable;

pub(crate) struct Kafka {
    servers: String,
}

struct Count(Arc<AtomicU64>);

impl ClientContext for Count {}

impl ProducerContext<NoCustomPartitioner> for Count {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_ok() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Kafka {
    /// Number of partitions of every topic.
    pub(crate) const PARTITIONS: u16 = 4;

    pub(crate) fn new(servers: String) -> Self {
        Self { servers }
    }

    pub(crate) fn from_environment() -> Result<Self, Failure> {
        Ok(Self::new(variable("OUTBOX_KAFKA_BROKERS")?))
    }

    /// Returns the bootstrap servers.
    pub(crate) fn servers(&self) -> &str {
        &self.servers
    }

    /// Returns the toolkit's connector that publishes in transactions.
    pub(crate) fn transactions(&self) -> Result<Arc<dyn Transactions>, Failure> {
        let config = kafka::Config::new(self.servers.split(','));
        Ok(Arc::new(kafka::TransactionalConnector::new(config)?))
    }

    /// Returns the section of the relay's configuration.
    pub(crate) fn section(&self) -> String {
        let servers: Vec<String> = self.servers.split(',').map(|server| format!("\"{server}\"")).collect();
        format!("[pipeline.kafka]\nbootstrap_servers = [{}]\n", servers.join(", "))
    }

    /// Returns how many records the topic's partitions hold.
    pub(crate) async fn records(&self, topic: &str) -> Result<u64, Failure> {
        Ok(PlainKafka::new(&self.servers).ends(topic).await?.into_iter().map(i64::unsigned_abs).sum())
    }

    /// Returns the times at which a reader gets records of the topic, from now on, until the
    /// receiver is dropped.
    pub(crate) fn arrivals(&self, topic: &str) -> Result<UnboundedReceiver<Instant>, Failure> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.servers).set("group.id", topic);
        let consumer: BaseConsumer = config.create()?;
        let mut partitions = TopicPartitionList::new();
        for partition in 0..i32::from(Self::PARTITIONS) {
            partitions.add_partition_offset(topic, partition, Offset::Beginning)?;
        }
        consumer.assign(&partitions)?;
        let (sender, arrivals) = unbounded_channel();
        tokio::task::spawn_blocking(move || {
            while !sender.is_closed() {
                if let Some(Ok(_)) = consumer.poll(Duration::from_millis(100)) {
                    _ = sender.send(Instant::now());
                }
            }
        });
        Ok(arrivals)
    }

    /// Returns all records of the topic, key and payload, each partition in its order.
    pub(crate) async fn log(&self, topic: &str) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        let records = PlainKafka::new(&self.servers).read_all(topic, Reading::default()).await?;
        let records = records.iter().map(PlainRecord::from);
        Ok(records.map(|record| (record.key.unwrap_or_default(), record.payload)).collect())
    }

    /// Returns the bare client.
    pub(crate) fn sender(&self) -> Result<Sender, Failure> {
        let confirmed = Arc::new(AtomicU64::new(0));
        let producer = ClientConfig::new()
            .set("bootstrap.servers", &self.servers)
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("linger.ms", "5")
            .set("queue.buffering.max.messages", "0")
            .set("queue.buffering.max.kbytes", "262144")
            .create_with_context(Count(Arc::clone(&confirmed)))?;
        Ok(Sender { producer: Arc::new(producer), sent: AtomicU64::new(0), confirmed })
    }

    pub(crate) fn config(&self) -> Result<kafka::Config, Failure> {
        let servers: Vec<&str> = self.servers.split(',').collect();
        Ok(serde_json::from_value(serde_json::json!({ "bootstrap_servers": servers }))?)
    }
}

#[async_trait]
impl Target for Kafka {
    fn name(&self) -> &'static str {
        "kafka"
    }

    async fn prepare(&self, topic: &str) -> Result<(), Failure> {
        let admin = kafka::Admin::new(&self.config()?)?;
        admin.create_topics(&[kafka::TopicPlan::new(topic, Self::PARTITIONS)]).await?;
        Ok(())
    }

    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        Ok(Arc::new(kafka::Connector::new(self.config()?)?))
    }

    async fn bare(&self, mut rows: Rows) -> Result<u64, Failure> {
        let sender = self.sender()?;
        loop {
            let page = rows.next().await?;
            if page.is_empty() {
                break;
            }
            for row in page {
                sender.send_with(&row.topic, &row.key, &row.payload, &row.attributes()).await?;
            }
        }
        sender.confirmed().await
    }

    async fn remove(&self, topic: &str) -> Result<(), Failure> {
        let admin = kafka::Admin::new(&self.config()?)?;
        admin.delete_topics(&[topic]).await?;
        Ok(())
    }
}

/// The client library alone: idempotent, pipelined, with a count of confirmations.
pub(crate) struct Sender {
    producer: Arc<ThreadedProducer<Count>>,
    sent: AtomicU64,
    confirmed: Arc<AtomicU64>,
}

impl Sender {
    /// Sends a record without waiting for its confirmation.
    pub(crate) async fn send(&self, topic: &str, key: &str, payload: &[u8]) -> Result<(), Failure> {
        self.send_with(topic, key, payload, &[]).await
    }

    async fn send_with(
        &self,
        topic: &str,
        key: &str,
        payload: &[u8],
        attributes: &[(&str, &str)],
    ) -> Result<(), Failure> {
        let headers = attributes.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header { key, value: Some(*value) })
        });
        let mut record = BaseRecord::to(topic).key(key).payload(payload).headers(headers);
        while let Err((error, back)) = self.producer.send(record) {
            if !matches!(error, KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)) {
                return Err(error.into());
            }
            record = back;
            tokio::task::yield_now().await;
        }
        self.sent.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Waits for every confirmation. Returns how many there were since the beginning.
    pub(crate) async fn confirmed(&self) -> Result<u64, Failure> {
        let producer = Arc::clone(&self.producer);
        tokio::task::spawn_blocking(move || producer.flush(Duration::from_secs(60))).await??;
        let (sent, confirmed) = (self.sent.load(Ordering::Relaxed), self.confirmed.load(Ordering::Relaxed));
        if confirmed == sent { Ok(confirmed) } else { Err(format!("{confirmed} of {sent} confirmed").into()) }
    }
}
