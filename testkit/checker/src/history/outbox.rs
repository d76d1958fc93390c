//! The outbox, and its parked messages.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Content;

/// Messages and rows that were committed and are gone because the database went back to an earlier
/// state: a backup was restored, or a lagging replica was promoted.
///
/// Such messages may be anywhere downstream, in any order, and none has to be delivered. Like all
/// others they take effect at most once. A message that was written again since then belongs to the
/// outbox, not here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Forgotten {
    /// The forgotten messages.
    pub messages: Vec<Uuid>,
    /// The forgotten business rows.
    pub rows: Vec<Arc<str>>,
}

/// A row of the outbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OutboxRow {
    /// The message id.
    pub id: Uuid,
    /// Its position in the log.
    pub position: i64,
    /// The topic to which it is published; `None` if that makes no difference.
    pub topic: Option<Arc<str>>,
    /// The business row that caused it, if known.
    pub row: Option<Arc<str>>,
    /// Its number within its key; see [`Enqueued::seq`](super::Enqueued::seq). The client's own
    /// number takes precedence.
    pub seq: Option<u64>,
    /// Whether it may leave later than its turn; see
    /// [`Enqueued::out_of_turn`](super::Enqueued::out_of_turn).
    pub out_of_turn: bool,
    /// The earliest time at which it may leave, in milliseconds since 1970; `None` for at once.
    pub due: Option<i64>,
    /// Whether the relay marked it as published; `None` for a relay that marks no rows.
    pub settled: Option<bool>,
    /// Whether the relay's stored cursor has passed it; `None` for a relay without a cursor.
    pub passed: Option<bool>,
    /// The content of the message.
    pub content: Content,
}

/// The reason why a message is parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParkedEntry {
    /// It is not due yet.
    Scheduled,
    /// It is retried.
    Retrying,
    /// It waits for another one of its key.
    Held,
    /// It is not retried until an operator decides.
    Dead,
    /// An operator decided that it is not published.
    Discarded,
}

/// A parked message, which operators see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parked {
    /// The message id.
    pub id: Uuid,
    /// The reason why it is parked.
    pub state: ParkedEntry,
}
