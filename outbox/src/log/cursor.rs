//! Places in the log.
//!
//! Ids are handed out before their transactions commit, so "everything above the last id" loses
//! rows. The log is read in *differences* instead: the set of rows that are visible at one mark and
//! were not at the mark before. Such a set never changes once both marks are taken; it is read in
//! the order of its ids, page by page, and when all of it is settled, the relay stands at the later
//! mark.

use serde::{Deserialize, Serialize};

use crate::log::entry::EntryId;

/// The transactions that had committed at some moment, in the dialect's own notation. PostgreSQL: a
/// snapshot and the sequence's position read before it; SQLite: the last id. Opaque to the relay.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Mark(String);

impl Mark {
    /// A mark from its notation; only the dialect that wrote it can read it.
    #[must_use]
    pub fn new(notation: impl Into<String>) -> Self {
        Self(notation.into())
    }

    /// The notation.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The rows that are visible at `head` and were not at `base`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Everything visible here is behind the reader.
    pub base: Mark,
    /// Everything visible here belongs to this difference or an earlier one.
    pub head: Mark,
    /// No row of the difference has a larger id.
    pub ceiling: i64,
}

/// How far a relay has come: every row visible at `base` is settled, and of the difference that
/// follows, as far as it has been opened, the rows up to `progress.after`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Everything visible here is settled.
    pub base: Mark,
    /// The difference that is being worked on.
    pub progress: Option<Progress>,
    /// The transaction of the broker that this position was published with; nothing for a relay
    /// that publishes without transactions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transaction: Option<BrokerTransaction>,
}

/// A transaction of a broker, as a relay's cursor remembers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerTransaction {
    /// The identity of the log towards the broker, made up before the first transaction.
    pub log: String,
    /// Counts the relay's transactions from 1; 0 before the first.
    pub number: u64,
    /// The cursor was moved back since, because the database tells another history: entries that
    /// have left may be before it again, and the broker cannot tell which.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_rebased: bool,
}

/// How far a difference is settled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Where the difference ends.
    pub head: Mark,
    /// No row of the difference has a larger id.
    pub ceiling: i64,
    /// Rows of the difference up to this id are settled.
    pub after: i64,
}

impl Cursor {
    /// A cursor at a mark, with nothing begun.
    #[must_use]
    pub fn at(base: Mark) -> Self {
        Self { base, progress: None, transaction: None }
    }

    /// A cursor inside a difference.
    #[must_use]
    pub fn inside(difference: &Difference, after: EntryId) -> Self {
        Self {
            base: difference.base.clone(),
            progress: Some(Progress {
                head: difference.head.clone(),
                ceiling: difference.ceiling,
                after: after.0,
            }),
            transaction: None,
        }
    }

    /// The difference to go on with and the id after which to go on.
    #[must_use]
    pub fn open(&self) -> Option<(Difference, EntryId)> {
        self.progress.as_ref().map(|progress| {
            let difference = Difference {
                base: self.base.clone(),
                head: progress.head.clone(),
                ceiling: progress.ceiling,
            };
            (difference, EntryId(progress.after))
        })
    }
}
