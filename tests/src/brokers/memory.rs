//! The in-memory broker.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use brokers::memory::Broker as MemoryBroker;
use message::{Connector, KeyWindow, Malformed, Subscription, Topic};

use crate::backends::Backend;
use crate::brokers::{Broker, Record};
use crate::stage::Stage;
use crate::trial::{Failure, Outcome};

/// The in-memory broker with topics that must exist.
pub struct Memory(MemoryBroker);

impl Memory {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self(MemoryBroker::with_strict_topics())
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Broker for Memory {
    fn backend(&self) -> Backend {
        Backend::Memory
    }

    fn key_window(&self) -> KeyWindow {
        KeyWindow::One
    }

    async fn create_topic(&self, _: &Stage, topic: &str) -> Outcome {
        self.0.create_topic(&Topic::new(topic)?);
        Ok(())
    }

    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        Ok(Arc::new(self.0.connector(KeyWindow::One)))
    }

    fn unreachable(&self) -> Result<Arc<dyn Connector>, Failure> {
        let dead = MemoryBroker::new();
        dead.faults().unreachable();
        Ok(Arc::new(dead.connector(KeyWindow::One)))
    }

    async fn subscribe(&self, group: &str, topic: &str) -> Result<Box<dyn Subscription>, Failure> {
        Ok(Box::new(self.0.subscribe(group, [Topic::new(topic)?])?))
    }

    fn relay_section(&self) -> Option<String> {
        None
    }

    fn oversize_bytes(&self) -> Option<usize> {
        None
    }

    async fn drain(&self, topic: &str, at_least: usize) -> Result<Vec<Record>, Failure> {
        let topic = Topic::new(topic)?;
        self.0.stored(&topic, at_least).await;
        let record = |message: message::Message| Record {
            key: message.key.as_ref().map(ToString::to_string),
            message_id: Some(message.id.to_string()),
            headers: message.headers.iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
            payload: message.payload.to_vec(),
        };
        Ok(self.0.log(&topic).into_iter().map(record).collect())
    }

    async fn put(&self, topic: &str, record: Record) -> Outcome {
        let headers: BTreeMap<String, String> = record.headers;
        let malformed = Malformed {
            problem: String::from("put as it is"),
            topic: topic.to_owned(),
            key: record.key,
            headers: headers.into_iter().collect(),
            payload: record.payload.into(),
        };
        self.0.put(&Topic::new(topic)?, Err(malformed));
        Ok(())
    }
}
