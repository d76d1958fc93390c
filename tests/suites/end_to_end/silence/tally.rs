//! A connector that counts the messages that pass through it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use message::{
    Capabilities, Connector, Message, MessageId, PublishError, Publisher, Receipts, Submission, Ticket,
};

/// Counts of the messages that pass through the connector.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    sessions: usize,
    submitted: HashMap<MessageId, (String, usize)>,
    /// Messages in the order of their first confirmations.
    confirmed: Vec<Arc<Message>>,
    seen: std::collections::HashSet<MessageId>,
    in_flight: HashMap<Ticket, Arc<Message>>,
}

impl Tally {
    /// Returns how many sessions were opened.
    pub(crate) fn sessions(&self) -> usize {
        self.lock().sessions
    }

    /// Returns how many messages of a topic are confirmed.
    pub(crate) fn confirmed(&self, topic: &str) -> usize {
        self.lock().confirmed.iter().filter(|message| message.topic.as_str() == topic).count()
    }

    /// Returns the number of resubmissions for a topic: the maximum for one message, and the total.
    pub(crate) fn copies(&self, topic: &str) -> (usize, usize) {
        let counts = self.lock();
        let of_topic = counts.submitted.values().filter(|(name, _)| name == topic);
        of_topic.fold((0, 0), |(most, all), (_, count)| (most.max(count - 1), all + count - 1))
    }

    /// Checks that the first confirmations of each key are in the order of the ids, which ascend in
    /// the order of enqueuing.
    pub(crate) fn assert_order(&self, topic: &str) {
        let counts = self.lock();
        let mut last: HashMap<String, MessageId> = HashMap::new();
        for message in counts.confirmed.iter().filter(|message| message.topic.as_str() == topic) {
            let Some(key) = &message.key else { continue };
            if let Some(before) = last.insert(key.as_str().to_owned(), message.id) {
                assert!(before < message.id, "key {key:?}: {before} was confirmed before {}", message.id);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connector that counts.
pub(crate) struct Tallied {
    inner: Arc<dyn Connector>,
    tally: Tally,
}

impl Tallied {
    pub(crate) fn new(inner: Arc<dyn Connector>, tally: Tally) -> Self {
        Self { inner, tally }
    }
}

#[async_trait]
impl Connector for Tallied {
    fn destination(&self) -> &str {
        self.inner.destination()
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
        let tally = self.tally.clone();
        let counted = receipts.through(move |receipt| {
            let mut counts = tally.lock();
            if let Some(message) = counts.in_flight.remove(&receipt.ticket)
                && receipt.outcome.is_ok()
                && counts.seen.insert(message.id)
            {
                counts.confirmed.push(message);
            }
            Some(receipt)
        });
        let inner = self.inner.connect(counted).await?;
        self.tally.lock().sessions += 1;
        Ok(Box::new(TalliedPublisher { inner, tally: self.tally.clone() }))
    }
}

struct TalliedPublisher {
    inner: Box<dyn Publisher>,
    tally: Tally,
}

#[async_trait]
impl Publisher for TalliedPublisher {
    fn profile(&self) -> Capabilities {
        self.inner.profile()
    }

    async fn submit(&mut self, batch: Vec<Submission>) {
        {
            let mut counts = self.tally.lock();
            for Submission { ticket, message } in &batch {
                let topic = || (message.topic.to_string(), 0);
                counts.submitted.entry(message.id).or_insert_with(topic).1 += 1;
                counts.in_flight.insert(*ticket, Arc::clone(message));
            }
        }
        self.inner.submit(batch).await;
    }

    async fn close(self: Box<Self>, grace: Duration) {
        self.inner.close(grace).await;
    }
}
