//! Events that the machine reports, and checkpoints that it wants to be stored.

use std::sync::Arc;

use message::{Fault, Message};
use outbox::log::{Cursor, ExceptionChange, Parked};

/// An event, for logs and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The broker confirmed a message.
    Published(Arc<Message>),
    /// An entry was parked.
    Parked(Box<Parked>),
    /// A topic stopped taking messages.
    TopicBlocked {
        /// The topic.
        topic: String,
        /// Whose fault.
        fault: Fault,
        /// The problem, and what to do about it.
        reason: String,
    },
    /// A topic takes messages again.
    TopicUnblocked {
        /// The topic.
        topic: String,
    },
}

/// A cursor and the changes that are to be stored with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The new cursor.
    pub cursor: Cursor,
    /// Changes of exceptions, committed with it.
    pub changes: Vec<ExceptionChange>,
}
