//! The brokers, each with its bare client.

mod kafka;
mod rabbitmq;
mod rows;
mod sqs;

use std::sync::Arc;

use async_trait::async_trait;
use clap::ValueEnum;
use message::Connector;

use crate::Failure;
use crate::rig::{Database, Shape, variable};

pub(crate) use kafka::{Kafka, Sender};
pub(crate) use rows::Rows;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Broker {
    Kafka,
    Rabbitmq,
    Sqs,
}

/// One broker as a benchmark sees it.
#[async_trait]
pub(crate) trait Target: Send + Sync {
    /// Its name in the report.
    fn name(&self) -> &'static str;
    /// A fresh topic or queue.
    async fn prepare(&self, topic: &str) -> Result<(), Failure>;
    /// The toolkit's connector.
    fn connector(&self) -> Result<Arc<dyn Connector>, Failure>;
    /// Publishes all rows of the topic without any bookkeeping; returns how many were confirmed.
    async fn bare(&self, rows: Rows) -> Result<u64, Failure>;
    /// Removes the topic or queue.
    async fn remove(&self, topic: &str) -> Result<(), Failure>;
}

impl Broker {
    pub(crate) fn target(self) -> Result<Box<dyn Target>, Failure> {
        Ok(match self {
            Self::Kafka => Box::new(Kafka::new(variable("OUTBOX_KAFKA_BROKERS")?)),
            Self::Rabbitmq => Box::new(rabbitmq::Rabbitmq::new(variable("OUTBOX_RABBITMQ_URL")?)),
            Self::Sqs => Box::new(sqs::Sqs::new(variable("OUTBOX_SQS_ENDPOINT")?)),
        })
    }
}

/// A fresh topic with a backlog, in a table that holds nothing else: what turns before left is
/// gone.
pub(crate) async fn backlog(
    database: &Database,
    target: &(impl Target + ?Sized),
    shape: Shape,
) -> Result<String, Failure> {
    let topic = fresh_topic();
    target.prepare(&topic).await?;
    database.run("TRUNCATE outbox_message").await?;
    database.fill(&topic, shape).await?;
    Ok(topic)
}

/// A name that nothing else has.
pub(crate) fn fresh_topic() -> String {
    format!("bench-{}", uuid::Uuid::now_v7().simple())
}
