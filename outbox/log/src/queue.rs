//! Reads exceptions back in pages, each of which continues where the previous one ended.

use std::fmt;
use std::time::Duration;

use crate::entry::EntryId;
use crate::exception::Exception;

/// The name of a queue of held entries: the entries of a key in the order of ids, or the entries of
/// a topic without a key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName(String);

impl QueueName {
    /// Returns the queue in which an entry is held.
    #[must_use]
    pub fn of(topic: &str, key: Option<&str>) -> Self {
        Self(match key {
            Some(key) => format!("k{key}"),
            None => format!("t{topic}"),
        })
    }

    /// Returns the name as the database computes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the key whose entries it holds; `None` if it holds entries without a key.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.0.strip_prefix('k')
    }

    pub(crate) fn stored(name: String) -> Self {
        Self(name)
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A queue that holds entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldQueue {
    /// Its name.
    pub name: QueueName,
    /// Its first entry.
    pub first: EntryId,
    /// The topic of its first entry.
    pub topic: String,
}

/// Queues in the order of their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldQueues {
    /// The queues.
    pub queues: Vec<HeldQueue>,
    /// Whether no queue follows.
    pub exhausted: bool,
}

impl HeldQueues {
    /// Makes the list from the first row of each queue, at most `queues_max` queues, in the order
    /// of their names.
    pub(crate) fn of(rows: Vec<(String, i64, String)>, queues_max: usize) -> Self {
        let exhausted = rows.len() < queues_max;
        let queue =
            |(name, id, topic)| HeldQueue { name: QueueName::stored(name), first: EntryId(id), topic };
        Self { queues: rows.into_iter().map(queue).collect(), exhausted }
    }
}

/// A request for entries of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldAsk {
    /// The name of the queue.
    pub queue: QueueName,
    /// The first id to return.
    pub from: EntryId,
}

/// Entries of one queue, in the order of ids.
#[derive(Debug, Clone, Default)]
pub struct HeldPage {
    /// The entries.
    pub exceptions: Vec<Exception>,
    /// Whether no entry follows.
    pub exhausted: bool,
}

/// The kinds of exceptions that have a due time. They are read separately, so that any number of
/// retried ones delays nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DueKind {
    /// Scheduled ones, and those that an operator has discarded.
    Scheduled,
    /// Those that are retried.
    Retrying,
}

/// A position among the exceptions that have a due time, in the order of (`due_at`, id).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DuePosition {
    /// Microseconds since 1970 by the database's clock.
    pub at_micros: i64,
    /// The entry.
    pub id: EntryId,
}

/// Exceptions that are due, in the order of (`due_at`, id).
#[derive(Debug, Clone, Default)]
pub struct DuePage {
    /// The exceptions.
    pub exceptions: Vec<Exception>,
    /// The position of the last one, or the requested position when there is none.
    pub position: Option<DuePosition>,
    /// Whether no other exception is due.
    pub exhausted: bool,
    /// Time until the next one behind `position` is due. Set only when the page is exhausted.
    pub next_in: Option<Duration>,
}
