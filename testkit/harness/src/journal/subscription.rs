//! A subscription that records its deliveries before it returns them.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use message::{Delivery, DeliveryToken, Disposition, Settlement, Subscription, SubscriptionError};
use uuid::Uuid;

use super::{Journal, Part, Received, Settled};
use crate::clock;
use crate::content::content;

/// A subscription that keeps a journal.
pub struct Journaled {
    /// The underlying subscription.
    pub inner: Box<dyn Subscription>,
    /// The journal.
    pub journal: Arc<Journal>,
    /// The name of the consumer.
    pub consumer: Arc<str>,
    /// Whether the payloads of chunks are recorded, which is needed if the broker keeps no readable
    /// log.
    pub keeps_parts: bool,
    /// The messages whose handler ran, if settlements are recorded as well.
    pub handled: Option<Handled>,
}

/// Messages whose handler ran in this process, but which are not settled yet. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Handled(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    ids: HashMap<DeliveryToken, Uuid>,
    handled: HashSet<Uuid>,
}

impl Handled {
    /// Begins a session. Messages that an earlier session handled but could not settle come again,
    /// as duplicates.
    pub fn begin(&self) {
        *self.known() = Known::default();
    }

    /// Records that the handler of a message ran.
    pub fn insert(&self, id: Uuid) {
        self.known().handled.insert(id);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // The sets are consistent even if another thread panicked while it held the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn received(&self, deliveries: &[Delivery]) {
        let ids = deliveries.iter().map(|delivery| (delivery.token, delivery.subject()));
        self.known().ids.extend(ids);
    }

    fn settled(&self, settlements: &[Settlement]) -> Vec<Settled> {
        let mut known = self.known();
        let mut entries = Vec::new();
        for settlement in settlements {
            let Some(id) = known.ids.remove(&settlement.token()) else { continue };
            if *settlement.disposition() == Disposition::Done {
                entries.push(Settled { settled: id, handled: known.handled.remove(&id) });
            }
        }
        entries
    }
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
        self.journal.write(&entries).map_err(unwritten)?;
        if let Some(handled) = &self.handled {
            handled.received(&deliveries);
        }
        Ok(deliveries)
    }

    async fn settle(&mut self, settlements: Vec<Settlement>) -> Result<(), SubscriptionError> {
        if let Some(handled) = &self.handled {
            self.journal.write(&handled.settled(&settlements)).map_err(unwritten)?;
        }
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

fn unwritten(error: std::io::Error) -> SubscriptionError {
    SubscriptionError::lost("the journal cannot be written").with_source(error)
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
