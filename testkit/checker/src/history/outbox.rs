//! The outbox and what is parked beside it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Content;

/// Messages and rows that were committed and are gone, because the database went back to an earlier
/// state: a restore, or the promotion of a replica that lagged.
///
/// Its messages may be anywhere downstream, out of their turn, and nobody owes them anything; they
/// take effect at most once like all others. Whatever was written again since belongs to the
/// outbox, and not here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Forgotten {
    /// Messages.
    pub messages: Vec<Uuid>,
    /// Business rows.
    pub rows: Vec<Arc<str>>,
}

/// A row of the outbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OutboxRow {
    /// The message id.
    pub id: Uuid,
    /// Where it stands in the log.
    pub position: i64,
    /// Where it is to be published; `None` where that makes no difference.
    pub topic: Option<Arc<str>>,
    /// The business row that caused it, where that can be told.
    pub row: Option<Arc<str>>,
    /// Its number within its key; see [`Enqueued::seq`](super::Enqueued::seq). The client's own
    /// word goes first.
    pub seq: Option<u64>,
    /// Whether it may leave later than its turn; see
    /// [`Enqueued::out_of_turn`](super::Enqueued::out_of_turn).
    pub out_of_turn: bool,
    /// When it may leave at the earliest, in milliseconds since 1970; `None` for at once.
    pub due: Option<i64>,
    /// Whether the relay marked it as published, where it marks rows.
    pub settled: Option<bool>,
    /// Whether the relay's stored cursor has passed it, where it keeps one.
    pub passed: Option<bool>,
    /// The content of the message.
    pub content: Content,
}

/// Why a message is parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParkedEntry {
    /// It is not due.
    Scheduled,
    /// It is tried again.
    Retrying,
    /// It waits for another one of its key.
    Held,
    /// It is not tried again until an operator decides.
    Dead,
    /// An operator decided that it is not published.
    Discarded,
}

/// A parked message, where an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parked {
    /// The message id.
    pub id: Uuid,
    /// Why it is there.
    pub state: ParkedEntry,
}
