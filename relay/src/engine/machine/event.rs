//! What the machine tells, and what it wants to be stored.

use std::sync::Arc;

use message::{Fault, Message};
use outbox::log::{Cursor, ExceptionChange, Parked};

/// What happened, for logs and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The broker confirmed a message.
    Published(Arc<Message>),
    /// An entry was put beside the log.
    Parked(Box<Parked>),
    /// A topic stopped taking messages.
    TopicBlocked {
        /// The topic.
        topic: String,
        /// Whose fault.
        fault: Fault,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A topic takes messages again.
    TopicUnblocked {
        /// The topic.
        topic: String,
    },
}

/// What is to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The new cursor.
    pub cursor: Cursor,
    /// Changes beside the log, committed with it.
    pub changes: Vec<ExceptionChange>,
}
