//! One row of the log.

use std::fmt;
use std::time::Duration;

use message::Message;

/// The place of an entry in its log: the row's `id`. Ascends with allocation, not with commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EntryId(pub i64);

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A committed row of the log.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its place.
    pub id: EntryId,
    /// The message, or why the row is none: rows written with plain SQL can hold anything the
    /// columns take.
    pub message: Result<Message, InvalidEntry>,
    /// How long it still has to wait by the database's clock; `None` when it may leave now.
    pub deliver_in: Option<Duration>,
}

/// A row that is not a valid message; it is parked for an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidEntry {
    /// The row's message id, as text.
    pub message_id: String,
    /// The row's topic.
    pub topic: String,
    /// The row's key.
    pub key: Option<String>,
    /// The problem, with the value and the limit.
    pub problem: String,
}

impl Entry {
    /// The topic as text.
    #[must_use]
    pub fn topic(&self) -> &str {
        match &self.message {
            Ok(message) => message.topic.as_str(),
            Err(invalid) => &invalid.topic,
        }
    }

    /// The ordering key as text.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match &self.message {
            Ok(message) => message.key.as_ref().map(message::OrderingKey::as_str),
            Err(invalid) => invalid.key.as_deref(),
        }
    }

    /// The message id as text.
    #[must_use]
    pub fn message_id(&self) -> String {
        match &self.message {
            Ok(message) => message.id.to_string(),
            Err(invalid) => invalid.message_id.clone(),
        }
    }

    /// Returns the bytes that the entry takes in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.message {
            Ok(message) => message.wire_bytes(),
            Err(invalid) => 512 + invalid.problem.len(),
        }
    }
}

/// How much one read may bring. At least one entry comes when there is one, however large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLimit {
    /// Entries at most.
    pub entries_max: usize,
    /// Bytes of payload at most.
    pub bytes_max: usize,
}

/// A run of entries in the order of their ids.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Whether nothing follows.
    pub exhausted: bool,
}
