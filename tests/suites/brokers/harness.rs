//! The brokers of the shared harness, in the form that the conformance suite expects.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use conformance::{Foreign, Redelivery};
use message::{Connector, Subscription};
use tests::brokers::Record;
use tests::{Backend, Broker, Failure, Outcome, Stage};

use crate::sqs;

/// A broker, and the stage that its topics belong to.
pub(crate) struct Harness {
    stage: Stage,
    broker: Arc<dyn Broker>,
}

impl Harness {
    pub(crate) fn new(stage: Stage, broker: Arc<dyn Broker>) -> Self {
        Self { stage, broker }
    }

    fn is_sqs(&self) -> bool {
        matches!(self.broker.backend(), Backend::Sqs | Backend::SqsFifo)
    }

    /// Returns the prefix of attributes in the broker's CloudEvents binding.
    fn prefix(&self) -> &'static str {
        match self.broker.backend() {
            Backend::Kafka | Backend::KafkaMock => "ce_",
            Backend::Rabbitmq => "cloudEvents_",
            _ => "",
        }
    }
}

#[async_trait]
impl conformance::Broker for Harness {
    fn topic_name(&self, prefix: &str) -> String {
        self.broker.topic_name(&self.stage, prefix)
    }

    async fn create_topic(&self, topic: &str) -> Outcome {
        self.broker.create_topic(&self.stage, topic).await
    }

    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        self.broker.connector()
    }

    fn unreachable(&self) -> Result<Arc<dyn Connector>, Failure> {
        self.broker.unreachable()
    }

    async fn subscribe(
        &self,
        group: &str,
        topic: &str,
        redelivery: Redelivery,
    ) -> Result<Box<dyn Subscription>, Failure> {
        if self.is_sqs() {
            let visibility_timeout_secs = match redelivery {
                Redelivery::Late => 300,
                Redelivery::Soon => 2,
            };
            return sqs::subscribe(topic, visibility_timeout_secs).await;
        }
        self.broker.subscribe(group, topic).await
    }

    async fn payloads(&self, topic: &str, at_least: usize) -> Result<Vec<Vec<u8>>, Failure> {
        let records = self.broker.drain(topic, at_least).await?;
        Ok(records.into_iter().map(|record| record.payload).collect())
    }

    async fn put(&self, topic: &str, foreign: &Foreign) -> Outcome {
        let attributes = [
            ("specversion", Some("1.0")),
            ("type", Some("t")),
            ("datacontenttype", Some("text/plain")),
            ("id", foreign.id.as_deref()),
        ];
        let named = |(name, value): (&str, Option<&str>)| {
            Some((format!("{}{name}", self.prefix()), value?.to_owned()))
        };
        let mut headers: BTreeMap<String, String> = attributes.into_iter().filter_map(named).collect();
        headers.extend([foreign.header.clone()]);
        let (key, payload) = (Some(foreign.key.clone()), foreign.payload.clone());
        self.broker.put(topic, Record { key, message_id: None, headers, payload }).await
    }

    fn oversize_bytes(&self) -> Option<usize> {
        self.broker.oversize_bytes()
    }

    async fn unsettled(&self, topic: &str) -> Result<Option<u64>, Failure> {
        if self.is_sqs() { sqs::left(topic).await.map(Some) } else { Ok(None) }
    }
}
