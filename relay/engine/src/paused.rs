//! Pauses that operators have set, for lookups by the engine. Pure.
//!
//! A paused topic or key is treated like one whose destination does not answer, but no entry probes
//! it: all its entries are held. A paused pipeline submits nothing, so the window fills and reading
//! stops; nothing is parked for it.

use std::collections::{BTreeSet, HashMap};

use outbox_log::{PauseScope, QueueName};

use crate::held::QueueHash;

/// All pauses of one relay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Paused {
    pipeline: bool,
    topics: BTreeSet<String>,
    keys: HashMap<QueueHash, QueueName>,
}

impl Paused {
    /// Collects the pauses of these scopes.
    #[must_use]
    pub(crate) fn of(scopes: impl IntoIterator<Item = PauseScope>) -> Self {
        let mut paused = Self::default();
        for scope in scopes {
            match scope {
                PauseScope::Pipeline => paused.pipeline = true,
                PauseScope::Topic(topic) => _ = paused.topics.insert(topic),
                PauseScope::Key(key) => {
                    let name = QueueName::of("", Some(&key));
                    paused.keys.insert(QueueHash::of_name(&name), name);
                }
            }
        }
        paused
    }

    /// Returns whether no topic and no key is paused.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.topics.is_empty() && self.keys.is_empty()
    }

    /// Returns whether nothing may be submitted.
    #[must_use]
    pub(crate) fn has_pipeline(&self) -> bool {
        self.pipeline
    }

    /// Returns whether the topic is paused.
    #[must_use]
    pub(crate) fn has_topic(&self, topic: &str) -> bool {
        self.topics.contains(topic)
    }

    /// Returns whether the queue is that of a paused key.
    #[must_use]
    pub(crate) fn has_queue(&self, queue: QueueHash) -> bool {
        self.keys.contains_key(&queue)
    }

    /// Returns the queues of paused keys.
    pub(crate) fn queues(&self) -> impl Iterator<Item = QueueHash> {
        self.keys.keys().copied()
    }

    /// Returns the topics that are paused here and not in `other`.
    pub(crate) fn topics_without<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a str> {
        self.topics.difference(&other.topics).map(String::as_str)
    }

    /// Returns the queues of the keys that are paused here and not in `other`.
    pub(crate) fn queues_without<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a QueueName> {
        let without = self.keys.iter().filter(|(queue, _)| !other.has_queue(**queue));
        without.map(|(_, name)| name)
    }
}
