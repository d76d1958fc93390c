//! The operations of clients, and the committed business rows.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Content;
use crate::Digest;

/// The outcome of a transaction, as its client sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The client got the answer that the transaction is committed.
    Ok,
    /// The client got the answer that nothing happened, or rolled back itself.
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
    /// The outcome, as the client sees it.
    pub outcome: Outcome,
    /// The time at which the operation began, before its first statement. The clock may be anything
    /// that orders the operations of all clients: a counter, or microseconds of a machine's
    /// monotonic clock.
    pub started: Option<u64>,
    /// The time at which the outcome was known, on the same clock, or `None` if it never was.
    pub ended: Option<u64>,
    /// The messages that the operation enqueued, in order.
    pub messages: Vec<Enqueued>,
    /// Business rows that the operation wrote.
    pub rows: Vec<Arc<str>>,
    /// Messages that the operation enqueued and rolled back to a savepoint.
    pub undone_messages: Vec<Uuid>,
    /// Business rows that the operation wrote and rolled back to a savepoint.
    pub undone_rows: Vec<Arc<str>>,
}

/// A message as a client enqueued it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Enqueued {
    /// The message id.
    pub id: Uuid,
    /// The number of the message within its key in causal order, such as a counter that is kept
    /// under a lock of the key. Two numbered messages of one key must arrive in this order.
    pub seq: Option<u64>,
    /// Whether the message may be published later than its turn, because it is scheduled or an
    /// operator's policy passed it.
    pub out_of_turn: bool,
    /// The content that the client sent.
    pub content: Content,
}

/// A committed business row.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BusinessRow {
    /// The name of the row: the primary key, together with the table if there are several.
    pub id: Arc<str>,
    /// How many outbox rows must name this row as their cause, if outbox rows name a cause.
    pub messages: Option<u32>,
    /// The payload that these outbox rows must have, if it follows from the row.
    pub payload: Option<Digest>,
}
