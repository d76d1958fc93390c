//! The operations of clients, and the business rows that are there.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Content;
use crate::Digest;

/// The outcome of a transaction, as its client was told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was told that the transaction is committed.
    Ok,
    /// It was told that nothing happened, or it rolled back itself.
    Failed,
    /// It was told that nobody knows, or it died before it was told anything.
    #[default]
    Unknown,
}

/// One transaction of a client.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Operation {
    /// A name that no other operation of this history has.
    pub id: Arc<str>,
    /// The outcome that its client was told.
    pub outcome: Outcome,
    /// When it began, before its first statement. Any clock serves on which the operations of all
    /// clients stand in one order: a counter, or microseconds of a machine's monotonic clock.
    pub started: Option<u64>,
    /// When its outcome was known, on the same clock. `None` when it never was.
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
    /// the key. Two messages of one key with numbers are expected in that order.
    pub seq: Option<u64>,
    /// Whether it may leave later than its turn: scheduled, or passed over by an operator's policy.
    pub out_of_turn: bool,
    /// The content that the client sent.
    pub content: Content,
}

/// A committed business row.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BusinessRow {
    /// Its name: the primary key, with its table where there are several.
    pub id: Arc<str>,
    /// How many outbox rows must name it as their cause, where outbox rows name one.
    pub messages: Option<u32>,
    /// The payload that these outbox rows must have, where it follows from the row.
    pub payload: Option<Digest>,
}
