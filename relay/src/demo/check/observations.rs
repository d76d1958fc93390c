//! Everything that was observed, in the order in which it was.

use std::collections::BTreeSet;

use uuid::Uuid;

/// A committed business row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    /// Unique in a run.
    pub(crate) number: u64,
    /// The ordering key.
    pub(crate) customer: String,
    /// 1 for the customer's first order, counted under the customer's row lock.
    pub(crate) seq: u64,
    /// The price.
    pub(crate) cents: u64,
}

/// A row of the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutboxRow {
    /// The message id.
    pub(crate) id: Uuid,
    /// The payload.
    pub(crate) payload: Vec<u8>,
}

/// A message that the broker has, or that a consumer got from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogRecord {
    /// The message id; nothing when there is none.
    pub(crate) id: Option<Uuid>,
    /// The payload.
    pub(crate) payload: Vec<u8>,
}

/// An effect of the consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Effect {
    /// The message that caused it.
    pub(crate) id: Uuid,
    /// The amount that was charged.
    pub(crate) cents: u64,
    /// The payload as it arrived.
    pub(crate) payload: Vec<u8>,
}

/// Where the published messages were seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Observed {
    /// In the broker's own log, or in a queue beside the consumer's.
    Broker,
    /// By the consumer, which wrote down what it received: the broker keeps no log.
    Consumer,
}

/// The observations of one run.
#[derive(Debug, Clone)]
pub(crate) struct Observations {
    /// Business rows.
    pub(crate) orders: Vec<Order>,
    /// Numbers of orders that were rolled back on purpose.
    pub(crate) rolled_back: BTreeSet<u64>,
    /// The outbox.
    pub(crate) outbox: Vec<OutboxRow>,
    /// The published messages, in the broker's order within each ordering key.
    pub(crate) log: Vec<LogRecord>,
    /// Whether the broker keeps the order of a key, so that it can be checked.
    pub(crate) ordered: bool,
    /// Message ids in the inbox.
    pub(crate) inbox: Vec<Uuid>,
    /// Whether the inbox's guard was on, so that effects and inbox rows belong together.
    pub(crate) guarded: bool,
    /// Effects, in the order of their commits.
    pub(crate) effects: Vec<Effect>,
}
