//! The reports of the engine as plain data. Telemetry reads them and decides nothing.

use std::sync::Arc;
use std::time::Duration;

use message::{Fault, FaultScope, Message};
use outbox_log::Parked;

/// An event, for logs and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The broker confirmed a message.
    Published {
        /// The message.
        message: Arc<Message>,
        /// When it was handed to the publisher, since the lease was taken; `None` when it was no
        /// longer in flight.
        submitted_at: Option<Duration>,
        /// The number of this attempt, from 1, among those that count; `None` when the confirmation
        /// came after the message had been parked as unanswered.
        attempt: Option<u32>,
    },
    /// A receipt was not a confirmation.
    Failed {
        /// The message.
        message: Arc<Message>,
        /// When it was handed to the publisher, since the lease was taken.
        submitted_at: Option<Duration>,
        /// The number of this attempt, from 1, among those that count.
        attempt: u32,
        /// Party at fault.
        fault: Fault,
        /// How far the failure reaches.
        scope: FaultScope,
    },
    /// A destination had no room for a message, because enough others wait for it. The message is
    /// held in order, or retried if it names its destination.
    Busy {
        /// The message.
        message: Arc<Message>,
        /// The reason, if the topic was not busy before.
        begins: Option<String>,
    },
    /// The destination of a busy topic has had room for all of its messages for a minute.
    NotBusy {
        /// The topic.
        topic: String,
    },
    /// A destination that messages name themselves had no room for a message, and had room for all
    /// of them before.
    NamedBusy {
        /// The reason that it gives.
        reason: String,
    },
    /// Such a destination has had room for all of its messages for a minute.
    NamedNotBusy {
        /// The reason that it gave last.
        reason: String,
    },
    /// An entry was parked because the destination that it names had no room for it.
    Postponed(Box<Parked>),
    /// Some entries of a page are left to other relays: their number.
    LeftOut(u64),
    /// An entry was parked.
    Parked(Box<Parked>),
    /// A topic stopped taking messages.
    TopicBlocked {
        /// The topic.
        topic: String,
        /// Party at fault.
        fault: Fault,
        /// The problem, and what to do about it.
        reason: String,
    },
    /// A topic takes messages again.
    TopicUnblocked {
        /// The topic.
        topic: String,
    },
    /// The broker confirms nothing, or answers again.
    Session(News),
}

/// A change of the whole session that is worth a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// Nothing was confirmed for this time, although messages wait for confirmation.
    Silent(Duration),
    /// Something was confirmed again.
    Answers,
}

/// The load of a term at one point in time.
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
    /// Topics whose destinations have more messages than they take soon.
    pub busy_topics: usize,
    /// Messages that were parked as unanswered and may still be answered.
    pub unanswered: usize,
}
