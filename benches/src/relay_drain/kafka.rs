//! Kafka: a bare `ThreadedProducer` with its delivery callback.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use brokers::kafka;
use message::Connector;
use rdkafka::ClientConfig;
use rdkafka::ClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, NoCustomPartitioner, Producer, ProducerContext, ThreadedProducer};

use super::{Rows, Target};
use crate::Failure;

pub(super) struct Kafka {
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
    pub(super) fn new(servers: String) -> Self {
        Self { servers }
    }

    fn config(&self) -> Result<kafka::Config, Failure> {
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
        admin.create_topics(&[kafka::TopicPlan::new(topic, 4)]).await?;
        Ok(())
    }

    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        Ok(Arc::new(kafka::Connector::new(self.config()?)?))
    }

    async fn bare(&self, mut rows: Rows) -> Result<u64, Failure> {
        let confirmed = Arc::new(AtomicU64::new(0));
        let producer: ThreadedProducer<Count> = ClientConfig::new()
            .set("bootstrap.servers", &self.servers)
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("linger.ms", "5")
            .set("queue.buffering.max.messages", "0")
            .set("queue.buffering.max.kbytes", "262144")
            .create_with_context(Count(Arc::clone(&confirmed)))?;
        loop {
            let page = rows.next().await?;
            if page.is_empty() {
                break;
            }
            for row in page {
                let headers =
                    row.attributes().into_iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
                        headers.insert(Header { key, value: Some(value) })
                    });
                let mut record =
                    BaseRecord::to(&row.topic).key(&row.key).payload(&row.payload).headers(headers);
                while let Err((error, back)) = producer.send(record) {
                    if !matches!(error, KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull)) {
                        return Err(error.into());
                    }
                    record = back;
                    tokio::task::yield_now().await;
                }
            }
        }
        tokio::task::spawn_blocking(move || producer.flush(Duration::from_secs(60))).await??;
        Ok(confirmed.load(Ordering::Relaxed))
    }

    async fn remove(&self, topic: &str) -> Result<(), Failure> {
        let admin = kafka::Admin::new(&self.config()?)?;
        admin.delete_topics(&[topic]).await?;
        Ok(())
    }
}
