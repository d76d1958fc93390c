//! The operations of clients, and the committed business rows.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Content;
use crate::Digest;

/// The outcome of a transaction from its client's view.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The client got the answer that it is committed.
    Ok,
    /// The client got the answer that nothing happened, or it rolled back itself.
    Failed,
    /// The client got the answer that the outcome is unknown, or died before any answer.
    #[default]
    Unknown,
}

/// One transaction of a client.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Operation {
    /// The name of the operation, unique within this history.
    pub id: Arc<str>,
    /// The outcome from the client's view.
    pub outcome: Outcome,
    /// When it began, before its first statement. Any clock will do that orders the operations of
    /// all clients: a counter, or microseconds of a machine's monotonic clock.
    pub started: Option<u64>,
    /// When its outcome was known, on the same clock. `None` if it never was.
    pub ended: Option<u64>,
    /// The messages that it enqueued, in its order.
    pub messages: Vec<Enqueued>,
    /// Business rows that it wrote.
    pub rows: Vec<Arc<str>>,
    /// Messages that it enqueued and rolled back to a savepoint.
    pub undone_messages: Vec<Uuid>,
    /// Business rows that it wrote and rolled back to a savepoint.
    pub undone_rows: Vec<Arc<str>>,
}

/// A message as a client enqueued it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Enqueued {
    /// The message id.
    pub id: Uuid,
    /// Its number within its key in causal order, such as a counter that is kept under a lock of
    /// the key. Two messages of one key with numbers must come in that order.
    pub seq: Option<u64>,
    /// Whether it may leave later than its turn: it is scheduled, or an operator's policy passed
    /// it.
    pub out_of_turn: bool,
    /// The content that the client sent.
    pub content: Content,
}

/// A committed business row.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BusinessRow {
    /// Its name: the primary key, with the table if there are several.
    pub id: Arc<str>,
    /// How many outbox rows must name it as their cause, if outbox rows name one.
    pub messages: Option<u32>,
    /// The payload that these outbox rows must have, if it follows from the row.
    pub payload: Option<Digest>,
}
