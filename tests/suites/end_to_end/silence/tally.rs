//! Counts the messages between engine and broker.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use harness::watched::Watch;
use message::{Message, MessageId, PublishError};

/// Counts of the messages that pass through a connector.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    sessions: usize,
    submitted: HashMap<MessageId, (String, usize)>,
    /// Messages in the order of their first confirmations.
    confirmed: Vec<Arc<Message>>,
    seen: HashSet<MessageId>,
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

impl Watch for Tally {
    fn connected(&self) {
        self.lock().sessions += 1;
    }

    fn submitted(&self, message: &Message) -> Result<(), PublishError> {
        let topic = || (message.topic.to_string(), 0);
        self.lock().submitted.entry(message.id).or_insert_with(topic).1 += 1;
        Ok(())
    }

    fn answered(&self, message: &Arc<Message>, outcome: &Result<(), PublishError>) {
        let mut counts = self.lock();
        if outcome.is_ok() && counts.seen.insert(message.id) {
            counts.confirmed.push(Arc::clone(message));
        }
    }
}
