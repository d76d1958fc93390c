//! Who was allowed to change what, and what nobody gave back.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Something that happened to a lease, as the database took it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub enum LeaseEvent {
    /// Somebody got it.
    Granted {
        /// Which lease.
        lease: Arc<str>,
        /// The epoch under which it is held from now on.
        epoch: u64,
        /// Who holds it.
        holder: Arc<str>,
    },
    /// Somebody wrote something under it.
    Wrote {
        /// Which lease.
        lease: Arc<str>,
        /// The epoch under which the writer believes to hold it.
        epoch: u64,
        /// The writer.
        holder: Arc<str>,
        /// Whether the database took it. A write under an old epoch may be tried; it must not be
        /// taken.
        applied: bool,
        /// The change, for people.
        what: Arc<str>,
    },
}

/// The kind of thing that must not be left when everything is healed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeakKind {
    /// A transaction that nobody ends.
    Transaction,
    /// A lease of somebody who is dead.
    Lease,
    /// A publish that was never answered.
    Confirm,
    /// A delivery that was never settled.
    Delivery,
    /// A connection that nobody uses.
    Connection,
    /// A task that nobody waits for.
    Task,
    /// A chunk of a message whose others never came.
    Chunk,
}

/// Something that nobody gave back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leak {
    /// Its kind.
    pub kind: LeakKind,
    /// Which one, for people.
    pub what: Arc<str>,
}
