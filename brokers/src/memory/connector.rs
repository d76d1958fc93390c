//! Opens publishing sessions.

use async_trait::async_trait;
use message::{MaxInFlightPerKey, PublishError, Receipts};

use super::broker::Broker;
use super::publisher::Publisher;

/// Connects to a [`Broker`].
#[derive(Debug, Clone)]
pub struct Connector {
    broker: Broker,
    max_in_flight_per_key: MaxInFlightPerKey,
}

impl Connector {
    pub(super) fn new(broker: Broker, max_in_flight_per_key: MaxInFlightPerKey) -> Self {
        Self { broker, max_in_flight_per_key }
    }
}

#[async_trait]
impl message::Connector for Connector {
    fn destination(&self) -> &str {
        "memory"
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn message::Publisher>, PublishError> {
        let session = self.broker.open(self.max_in_flight_per_key)?;
        Ok(Box::new(Publisher::new(self.broker.clone(), session, self.max_in_flight_per_key, receipts)))
    }
}
