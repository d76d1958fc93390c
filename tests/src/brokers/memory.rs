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
pub struct Memory {
    broker: MemoryBroker,
    key_window: KeyWindow,
}

impl Memory {
    /// An empty one whose sessions have this key window.
    #[must_use]
    pub fn new(key_window: KeyWindow) -> Self {
        Self { broker: MemoryBroker::with_strict_topics(), key_window }
    }
}

#[async_trait]
impl Broker for Memory {
    fn backend(&self) -> Backend {
        Backend::Memory
    }

    fn key_window(&self) -> KeyWindow {
        self.key_window
    }

    async fn create_topic(&self, _: &Stage, topic: &str) -> Outcome {
        self.broker.create_topic(&Topic::new(topic)?);
        Ok(())
    }

    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        Ok(Arc::new(self.broker.connector(self.key_window)))
    }

    fn unreachable(&self) -> Result<Arc<dyn Connector>, Failure> {
        let dead = MemoryBroker::new();
        dead.faults().unreachable();
        Ok(Arc::new(dead.connector(self.key_window)))
    }

    async fn subscribe(&self, group: &str, topic: &str) -> Result<Box<dyn Subscription>, Failure> {
        Ok(Box::new(self.broker.subscribe(group, [Topic::new(topic)?])?))
    }

    fn relay_section(&self) -> Option<String> {
        None
    }

    fn oversize_bytes(&self) -> Option<usize> {
        None
    }

    async fn drain(&self, topic: &str, at_least: usize) -> Result<Vec<Record>, Failure> {
        let topic = Topic::new(topic)?;
        self.broker.stored(&topic, at_least).await;
        let record = |message: message::Message| Record {
            key: message.key.as_ref().map(ToString::to_string),
            message_id: Some(message.id.to_string()),
            headers: message.headers.iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
            payload: message.payload.to_vec(),
        };
        Ok(self.broker.log(&topic).into_iter().map(record).collect())
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
        self.broker.put(&Topic::new(topic)?, Err(malformed));
        Ok(())
    }
}
