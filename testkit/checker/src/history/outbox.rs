//! The outbox, and its parked messages.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Content;

/// Messages and rows that were committed, but are lost because the database went back to an earlier
/// state: a backup was restored, or a lagging replica was promoted.
///
/// Such messages may be anywhere downstream, in any order, and do not have to be delivered. Like
/// all other messages they take effect at most once. A message that was written again since then
/// belongs to the outbox instead of this list.
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
    /// The position of the row in the log.
    pub position: i64,
    /// The topic to which the row is published, or `None` if that makes no difference.
    pub topic: Option<Arc<str>>,
    /// The business row that caused the message, if known.
    pub row: Option<Arc<str>>,
    /// The number of the message within its key; see [`Enqueued::seq`](super::Enqueued::seq). The
    /// client's own number takes precedence.
    pub seq: Option<u64>,
    /// Whether the message may be published later than its turn; see
    /// [`Enqueued::out_of_turn`](super::Enqueued::out_of_turn).
    pub out_of_turn: bool,
    /// The earliest time at which the message may be published, in milliseconds since 1970. `None`
    /// means at once.
    pub due: Option<i64>,
    /// Whether the relay marked the row as published, or `None` for a relay that marks no rows.
    pub settled: Option<bool>,
    /// Whether the relay's stored cursor has passed the row, or `None` for a relay without a
    /// cursor.
    pub passed: Option<bool>,
    /// The content of the message.
    pub content: Content,
}

/// The reason why a message is parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParkedEntry {
    /// The message is not due yet.
    Scheduled,
    /// The message is being retried.
    Retrying,
    /// The message waits for another message of its key.
    Held,
    /// The message is not retried until an operator decides.
    Dead,
    /// An operator decided that the message is not published.
    Discarded,
}

/// A parked message, which operators see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parked {
    /// The message id.
    pub id: Uuid,
    /// The reason why the message is parked.
    pub state: ParkedEntry,
}
