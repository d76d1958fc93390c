//! The tables of the consumers' database.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use checker::Content;
use message::{Fingerprint, MessageId};
use time::OffsetDateTime;
use tokio::time::Instant;

/// An inbox row.
#[derive(Debug, Clone)]
pub(crate) struct Remembered {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) processed_at: OffsetDateTime,
    pub(crate) content: Content,
}

/// The failures of a message.
#[derive(Debug, Clone)]
pub(super) struct NotedFailures {
    pub(super) attempts: u32,
    pub(super) uncounted: u32,
    pub(super) error: String,
    pub(super) first_failed_at: OffsetDateTime,
    pub(super) next_at: OffsetDateTime,
}

/// The tables of the consumers' database.
#[derive(Debug, Default)]
pub(crate) struct InboxTables {
    pub(crate) rows: BTreeMap<MessageId, Remembered>,
    /// The effects in the order of their commits.
    pub(crate) effects: Vec<(MessageId, Content)>,
    pub(crate) dead: BTreeSet<MessageId>,
    /// The rows of messages that ended as dead letters, unless they have taken effect.
    pub(super) dead_rows: BTreeMap<MessageId, Remembered>,
    pub(super) failures: BTreeMap<MessageId, NotedFailures>,
    /// Rows that open transactions have inserted, with the number of the transaction.
    pub(super) locks: HashMap<MessageId, u64>,
    pub(super) last_transaction: u64,
    /// Number of calls of the handler for each message.
    pub(super) calls: HashMap<MessageId, u32>,
    pub(crate) down_until: Option<Instant>,
}

impl InboxTables {
    pub(crate) fn is_down(&self) -> bool {
        self.down_until.is_some_and(|until| Instant::now() < until)
    }

    /// Returns the number of rows that are still locked.
    pub(crate) fn locks_len(&self) -> usize {
        self.locks.len()
    }
}
