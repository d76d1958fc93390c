//! The in-memory broker.

use std::sync::Arc;

use async_trait::async_trait;
use brokers::memory::Broker as MemoryBroker;
use conformance::{Foreign, Redelivery};
use harness::plain::PlainRecord;
use message::{Connector, Malformed, MaxInFlightPerKey, Subscription, Topic};

use crate::backends::Backend;
use crate::brokers::{Broker, payloads};
use crate::stage::Stage;
use crate::trial::{Failure, Outcome};

/// The in-memory broker with topics that must exist.
pub struct Memory {
    stage: Stage,
    broker: MemoryBroker,
    max_in_flight_per_key: MaxInFlightPerKey,
}

impl Memory {
    /// Creates an empty broker whose sessions have this maximum in flight per key.
    #[must_use]
    pub fn new(stage: &Stage, max_in_flight_per_key: MaxInFlightPerKey) -> Self {
        Self { stage: stage.clone(), broker: MemoryBroker::with_strict_topics(), max_in_flight_per_key }
    }
}

#[async_trait]
impl conformance::Broker for Memory {
    fn topic_name(&self, prefix: &str) -> String {
        self.stage.unique(prefix)
    }

    async fn create_topic(&self, topic: &str) -> Outcome {
        self.broker.create_topic(&Topic::new(topic)?);
        Ok(())
    }

    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        Ok(Arc::new(self.broker.connector(self.max_in_flight_per_key)))
    }

    fn unreachable(&self) -> Result<Arc<dyn Connector>, Failure> {
        let dead = MemoryBroker::new();
        dead.faults().unreachable();
        Ok(Arc::new(dead.connector(self.max_in_flight_per_key)))
    }

    async fn subscribe(
        &self,
        group: &str,
        topic: &str,
        _: Redelivery,
    ) -> Result<Box<dyn Subscription>, Failure> {
        Ok(Box::new(self.broker.subscribe(group, [Topic::new(topic)?])?))
    }

    async fn payloads(&self, topic: &str, at_least: usize) -> Result<Vec<Vec<u8>>, Failure> {
        self.drain(topic, at_least).await.map(payloads)
    }

    async fn put(&self, topic: &str, foreign: &Foreign) -> Outcome {
        self.write(topic, super::foreign(foreign, "")).await
    }
}

#[async_trait]
impl Broker for Memory {
    fn backend(&self) -> Backend {
        Backend::Memory
    }

    fn max_in_flight_per_key(&self) -> MaxInFlightPerKey {
        self.max_in_flight_per_key
    }

    fn relay_section(&self) -> Option<String> {
        None
    }

    async fn drain(&self, topic: &str, at_least: usize) -> Result<Vec<PlainRecord>, Failure> {
        let topic = Topic::new(topic)?;
        self.broker.stored(&topic, at_least).await;
        let record = |message: message::Message| PlainRecord {
            key: message.key.as_ref().map(ToString::to_string),
            message_id: Some(message.id.to_string()),
            headers: message.headers.iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
            payload: message.payload.to_vec(),
        };
        Ok(self.broker.log(&topic).into_iter().map(record).collect())
    }

    async fn write(&self, topic: &str, record: PlainRecord) -> Outcome {
        let malformed = Malformed {
            problem: String::from("put as it is"),
            topic: topic.to_owned(),
            key: record.key,
            headers: record.headers,
            payload: record.payload.into(),
            ..Malformed::default()
        };
        self.broker.put(&Topic::new(topic)?, Err(malformed));
        Ok(())
    }
}
