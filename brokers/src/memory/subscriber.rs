//! Opens subscriptions of one group.

use async_trait::async_trait;
use message::{Subscription, SubscriptionError, Topic};

use super::broker::Broker;

/// Subscribes a group to topics of a [`Broker`]; made by [`Broker::subscriber`].
#[derive(Debug, Clone)]
pub struct Subscriber {
    broker: Broker,
    group: String,
    topics: Vec<Topic>,
}

impl Broker {
    /// Returns a subscriber for a group that reads `topics` from their beginning. Does not join
    /// yet.
    #[must_use]
    pub fn subscriber(&self, group: &str, topics: impl IntoIterator<Item = Topic>) -> Subscriber {
        Subscriber { broker: self.clone(), group: group.to_owned(), topics: topics.into_iter().collect() }
    }
}

#[async_trait]
impl message::Subscriber for Subscriber {
    async fn subscribe(&self) -> Result<Box<dyn Subscription>, SubscriptionError> {
        Ok(Box::new(self.broker.subscribe(&self.group, self.topics.iter().cloned())?))
    }
}
