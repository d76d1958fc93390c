//! A subscription that writes down what it hands out, before anybody sees it.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use message::{Delivery, DeliveryToken, Settlement, Subscription, SubscriptionError};

use crate::clock;
use crate::content::content;
use crate::journal::{Journal, Part, Received};

/// A subscription that keeps a journal.
pub(super) struct Journaled {
    pub(super) inner: Box<dyn Subscription>,
    pub(super) journal: Arc<Journal>,
    pub(super) consumer: Arc<str>,
    /// Whether it writes down what chunks hold: where no log of the broker's can be read.
    pub(super) keeps_parts: bool,
}

#[async_trait]
impl Subscription for Journaled {
    fn origin(&self) -> &str {
        self.inner.origin()
    }

    async fn receive(
        &mut self,
        max: NonZeroUsize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, SubscriptionError> {
        let deliveries = self.inner.receive(max, wait).await?;
        let at = clock::now();
        let entries: Vec<Received> = deliveries.iter().map(|delivery| self.entry(at, delivery)).collect();
        let written = self.journal.write(&entries);
        written
            .map_err(|error| SubscriptionError::lost("the journal cannot be written").with_source(error))?;
        Ok(deliveries)
    }

    async fn settle(&mut self, settlements: Vec<Settlement>) -> Result<(), SubscriptionError> {
        self.inner.settle(settlements).await
    }

    async fn keep_alive(&mut self, tokens: &[DeliveryToken]) -> Result<(), SubscriptionError> {
        self.inner.keep_alive(tokens).await
    }

    fn redelivers_after(&self) -> Option<Duration> {
        self.inner.redelivers_after()
    }

    async fn stop_receiving(&mut self) -> Result<(), SubscriptionError> {
        self.inner.stop_receiving().await
    }

    async fn close(self: Box<Self>) -> Result<(), SubscriptionError> {
        self.inner.close().await
    }
}

impl Journaled {
    fn entry(&self, at: u64, delivery: &Delivery) -> Received {
        let (id, content, part) = match &delivery.message {
            Ok(message) => {
                let key = message.key.as_ref().map(|key| key.as_str());
                let content = content(key, &message.payload, message.headers.iter());
                let chunk = message.chunk.as_ref().filter(|_| self.keeps_parts);
                let part = chunk.map(|chunk| Part {
                    index: chunk.index(),
                    count: chunk.count(),
                    payload: String::from_utf8_lossy(&message.payload).into_owned(),
                });
                (Some(message.id.as_uuid()), content, part)
            }
            Err(malformed) => (None, content(malformed.key.as_deref(), &malformed.payload, []), None),
        };
        let consumer = Arc::clone(&self.consumer);
        Received { at, consumer, id, content, redelivered: delivery.redelivered, part }
    }
}
