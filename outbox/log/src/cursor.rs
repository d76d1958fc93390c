//! Positions in the log.

use serde::{Deserialize, Serialize};

use crate::entry::EntryId;

/// The transactions that had committed at some point in time, in the dialect's own notation.
/// PostgreSQL: a snapshot, and the sequence's position read before it. SQLite: the last id. Opaque
/// to the relay.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Mark(String);

impl Mark {
    /// Makes a mark from its notation. Only the dialect that wrote it can read it.
    #[must_use]
    pub fn new(notation: impl Into<String>) -> Self {
        Self(notation.into())
    }

    /// Returns the notation.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The rows that are visible at `head` and were not visible at `base`.
///
/// Ids are allocated before their transactions commit, so reading "everything above the last id"
/// misses rows. The log is read in differences instead. Once both marks are taken, this set never
/// changes. It is read in the order of ids, page by page. When all of it is settled, the relay
/// stands at the later mark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The reader has passed everything that is visible here.
    pub base: Mark,
    /// Everything visible here belongs to this difference or an earlier one.
    pub head: Mark,
    /// No row of the difference has a larger id.
    pub ceiling: i64,
}

/// The relay's progress in the log. Every row visible at `base` is settled. In the difference that
/// follows, if it has been opened, the rows up to `progress.after` are settled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Everything visible here is settled.
    pub base: Mark,
    /// The difference in progress.
    pub progress: Option<Progress>,
    /// The broker transaction that this position was published with; `None` for a relay that
    /// publishes without transactions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transaction: Option<BrokerTransaction>,
}

/// A broker transaction, as a relay's cursor stores it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerTransaction {
    /// Identifies the log to the broker. Generated before the first transaction.
    pub log: String,
    /// The number of the relay's transaction, counted from 1; 0 before the first.
    pub number: u64,
    /// The cursor has been moved back since, because the database has another history. Entries that
    /// were already published may be ahead of it again, and the broker cannot tell which.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_rebased: bool,
}

/// The progress in a difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The end of the difference.
    pub head: Mark,
    /// No row of the difference has a larger id.
    pub ceiling: i64,
    /// Rows of the difference up to this id are settled.
    pub after: i64,
}

impl Cursor {
    /// Makes a cursor at a mark, with no difference opened.
    #[must_use]
    pub fn at(base: Mark) -> Self {
        Self { base, progress: None, transaction: None }
    }

    /// Makes a cursor inside a difference.
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

    /// Returns the open difference and the id after which to continue.
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
