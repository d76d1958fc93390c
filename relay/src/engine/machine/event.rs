//! What the machine tells, and what it wants to be stored.

use message::{Fault, TraceContext};
use outbox::log::{Cursor, ExceptionChange, Parked};

/// What happened, for logs and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The broker confirmed a message.
    Published {
        /// Its message id.
        message_id: message::MessageId,
        /// Its topic.
        topic: message::Topic,
        /// The trace in which it was enqueued.
        trace: Option<TraceContext>,
    },
    /// An entry was put beside the log.
    Parked(Parked),
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
