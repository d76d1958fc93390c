//! Leases with their writes, and resources that were not released.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// An event of a lease, in the database's order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub enum LeaseEvent {
    /// A holder was granted the lease.
    Granted {
        /// The lease.
        lease: Arc<str>,
        /// The epoch of the new holder.
        epoch: u64,
        /// The holder.
        holder: Arc<str>,
    },
    /// A write under the lease.
    Wrote {
        /// The lease.
        lease: Arc<str>,
        /// The epoch under which the writer believes that it holds the lease.
        epoch: u64,
        /// The writer.
        holder: Arc<str>,
        /// Whether the database applied the write. A write under a stale epoch may be tried, but
        /// must not be applied.
        applied: bool,
        /// The change, for people.
        what: Arc<str>,
    },
}

/// The kind of a resource that must be released once everything is healed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeakKind {
    /// A transaction that does not end.
    Transaction,
    /// The lease of a dead holder.
    Lease,
    /// A publish that was never answered.
    Confirm,
    /// A delivery that was never settled.
    Delivery,
    /// A connection that is not used.
    Connection,
    /// A task that nothing awaits.
    Task,
    /// A chunk of a message whose other chunks never arrived.
    Chunk,
}

/// A resource that was not released.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leak {
    /// Its kind.
    pub kind: LeakKind,
    /// The resource, for people.
    pub what: Arc<str>,
}
