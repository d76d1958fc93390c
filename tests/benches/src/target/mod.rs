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

/// A broker in a benchmark.
#[async_trait]
pub(crate) trait Target: Send + Sync {
    /// Returns its name in the report.
    fn name(&self) -> &'static str;
    /// Creates a topic or queue.
    async fn prepare(&self, topic: &str) -> Result<(), Failure>;
    /// Returns the toolkit's connector.
    fn connector(&self) -> Result<Arc<dyn Connector>, Failure>;
    /// Publishes all rows of the topic without any bookkeeping. Returns how many were confirmed.
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

/// Creates a topic and its backlog, in a table that is otherwise empty: the rows of earlier rounds
/// have been removed.
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

/// Returns a unique name.
pub(crate) fn fresh_topic() -> String {
    format!("bench-{}", uuid::Uuid::now_v7().simple())
}
