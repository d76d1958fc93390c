//! Events that the machine reports, and checkpoints that it wants to be stored.

use std::sync::Arc;
use std::time::Duration;

use message::{Fault, FaultScope, Message};
use outbox::log::{Cursor, ExceptionChange, Parked};

use crate::engine::silence::News;

/// An event, for logs and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The broker confirmed a message.
    Published {
        /// The message.
        message: Arc<Message>,
        /// When it was handed to the publisher, since the lease was taken; `None` when it was not
        /// in flight any more.
        submitted_at: Option<Duration>,
        /// The number of this attempt, from 1, of those that counted; `None` when the confirmation
        /// came after the message had been given up waiting for.
        attempt: Option<u32>,
    },
    /// A receipt was not a confirmation.
    Failed {
        /// The message.
        message: Arc<Message>,
        /// When it was handed to the publisher, since the lease was taken.
        submitted_at: Option<Duration>,
        /// The number of this attempt, from 1, of those that counted.
        attempt: u32,
        /// Whose fault.
        fault: Fault,
        /// How far it reaches.
        scope: FaultScope,
    },
    /// So many entries of a page are not this relay's to publish.
    LeftOut(u64),
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
    /// The broker confirms nothing at all, or answers again.
    Session(News),
}

/// A cursor and the changes that are to be stored with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The new cursor.
    pub cursor: Cursor,
    /// Changes of exceptions, committed with it.
    pub changes: Vec<ExceptionChange>,
}
