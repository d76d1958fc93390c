//! The in-memory broker with [`KeyWindow::Pipelined`] sessions; the harness has the other kind.

use std::sync::Arc;

use async_trait::async_trait;
use brokers::memory::Broker as MemoryBroker;
use message::{Connector, KeyWindow, Message, Subscription, Topic};
use tests::brokers::Record;
use tests::{Backend, Broker, Failure, Outcome, Stage};

/// Topics must exist; a session ends with its first failure.
pub(crate) struct PipelinedMemory(MemoryBroker);

impl PipelinedMemory {
    pub(crate) fn new() -> Self {
        Self(MemoryBroker::with_strict_topics())
    }
}

#[async_trait]
impl Broker for PipelinedMemory {
    fn backend(&self) -> Backend {
        Backend::Memory
    }

    fn key_window(&self) -> KeyWindow {
        KeyWindow::Pipelined
    }

    async fn create_topic(&self, _: &Stage, topic: &str) -> Outcome {
        self.0.create_topic(&Topic::new(topic)?);
        Ok(())
    }

    fn connector(&self) -> Result<Arc<dyn Connector>, Failure> {
        Ok(Arc::new(self.0.connector(KeyWindow::Pipelined)))
    }

    fn unreachable(&self) -> Result<Arc<dyn Connector>, Failure> {
        let dead = MemoryBroker::new();
        dead.faults().unreachable();
        Ok(Arc::new(dead.connector(KeyWindow::Pipelined)))
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
        let record = |message: Message| Record { payload: message.payload.to_vec(), ..Record::default() };
        Ok(self.0.log(&topic).into_iter().map(record).collect())
    }

    async fn put(&self, _: &str, _: Record) -> Outcome {
        Err("this broker is for publishers".into())
    }
}
