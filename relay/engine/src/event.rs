//! The reports of the engine, as plain data: telemetry reads them, and decides nothing.

use std::sync::Arc;
use std::time::Duration;

use message::{Fault, FaultScope, Message};
use outbox::log::Parked;

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

/// A change of the session as a whole that is worth a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// Nothing was confirmed for so long, although messages wait for it.
    Silent(Duration),
    /// Something was, at last.
    Answers,
}

/// How much a lease has in hand at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Messages that the publisher has, without a receipt.
    pub in_flight: usize,
    /// Entries that were read and are not settled.
    pub window_entries: usize,
    /// Bytes of these entries.
    pub window_bytes: usize,
    /// Keys that wait.
    pub blocked_keys: usize,
    /// Topics that wait.
    pub blocked_topics: usize,
    /// Messages that are no longer waited for, and may still be answered.
    pub unanswered: usize,
}
