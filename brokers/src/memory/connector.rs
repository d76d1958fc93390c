//! Opens publishing sessions.

use async_trait::async_trait;
use message::{KeyWindow, PublishError, Receipts};

use super::broker::Broker;
use super::publisher::Publisher;

/// Connects to a [`Broker`].
#[derive(Debug, Clone)]
pub struct Connector {
    broker: Broker,
    key_window: KeyWindow,
}

impl Connector {
    pub(super) fn new(broker: Broker, key_window: KeyWindow) -> Self {
        Self { broker, key_window }
    }
}

#[async_trait]
impl message::Connector for Connector {
    fn destination(&self) -> &str {
        "memory"
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn message::Publisher>, PublishError> {
        let session = self.broker.open(self.key_window)?;
        Ok(Box::new(Publisher::new(self.broker.clone(), session, self.key_window, receipts)))
    }
}
