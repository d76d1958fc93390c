//! Single observations of a message, a row or a lease.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use uuid::Uuid;

use crate::history::{LeaseEvent, Outcome, ParkedEntry, SagaState, StepEffect};

/// An observation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "seen", rename_all = "snake_case")]
pub enum Event {
    /// A transaction of a client.
    Operation {
        /// The name of the operation.
        operation: Arc<str>,
        /// The outcome, as the client sees it.
        outcome: Outcome,
        /// The time at which the operation began.
        started: Option<u64>,
        /// The time at which the outcome was known.
        ended: Option<u64>,
        /// The messages that the operation enqueued and kept.
        messages: Vec<Uuid>,
        /// The business rows that the operation wrote and kept.
        rows: Vec<Arc<str>>,
    },
    /// A business row.
    Business {
        /// The name of the row.
        row: Arc<str>,
    },
    /// An outbox row.
    Outbox {
        /// The message id.
        id: Uuid,
        /// The position of the row in the log.
        position: i64,
        /// The ordering key of the message.
        key: Option<Arc<str>>,
        /// The earliest time at which the message may be published, in milliseconds since 1970.
        due: Option<i64>,
        /// Whether the relay considers the row done.
        done: Option<bool>,
    },
    /// The removal of an outbox row by retention.
    Removed {
        /// The message id.
        id: Uuid,
    },
    /// A parked message.
    Parked {
        /// The message id.
        id: Uuid,
        /// The reason why the message is parked.
        state: ParkedEntry,
    },
    /// A message at the broker.
    Published {
        /// The message id.
        id: Option<Uuid>,
        /// The partition or queue.
        place: Arc<str>,
        /// The number of earlier occurrences, in all places.
        nth: usize,
    },
    /// An inbox row.
    Remembered {
        /// The message id.
        id: Uuid,
        /// The consumer.
        consumer: Arc<str>,
        /// The scope.
        scope: Arc<str>,
        /// Whether retention has removed the row.
        expired: bool,
    },
    /// An effect.
    Applied {
        /// The message id.
        id: Uuid,
        /// The consumer.
        consumer: Arc<str>,
        /// The scope.
        scope: Arc<str>,
        /// The number of earlier effects of this consumer.
        nth: usize,
    },
    /// A dead letter of a consumer.
    DeadLetter {
        /// The message id.
        id: Uuid,
        /// The consumer.
        consumer: Arc<str>,
    },
    /// An event of a lease.
    Lease {
        /// The event.
        #[serde(flatten)]
        event: LeaseEvent,
    },
    /// An effect of a step or an undo of a saga at a service.
    Step {
        /// The effect.
        #[serde(flatten)]
        effect: StepEffect,
    },
    /// The state of a saga.
    Saga {
        /// The saga.
        saga: Arc<str>,
        /// The state of the saga.
        state: SagaState,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operation { operation, outcome, started, ended, messages, rows } => {
                let told = match outcome {
                    Outcome::Ok => "done",
                    Outcome::Failed => "failed",
                    Outcome::Unknown => "unknown",
                };
                let time = |at: &Option<u64>| at.map_or_else(|| String::from("?"), |at| at.to_string());
                let (started, ended) = (time(started), time(ended));
                write!(f, "operation {operation} from {started} to {ended}, reported as {told}: messages")?;
                messages.iter().try_for_each(|id| write!(f, " {id}"))?;
                f.write_str(", rows")?;
                rows.iter().try_for_each(|row| write!(f, " {row}"))
            }
            Self::Business { row } => write!(f, "business row {row}"),
            Self::Outbox { id, position, key, due, done } => {
                write!(f, "outbox row {position}: {id}")?;
                if let Some(key) = key {
                    write!(f, ", key {key:?}")?;
                }
                if let Some(due) = due {
                    write!(f, ", due at {due} ms")?;
                }
                match done {
                    Some(true) => f.write_str(", done according to the relay"),
                    Some(false) => f.write_str(", open according to the relay"),
                    None => Ok(()),
                }
            }
            Self::Removed { id } => write!(f, "retention removed {id}"),
            Self::Parked { id, state } => write!(f, "parked as {state:?}: {id}"),
            Self::Published { id, place, nth } => {
                write!(f, "published, occurrence {nth}, in {place:?}: ")?;
                match id {
                    Some(id) => write!(f, "{id}"),
                    None => f.write_str("no id"),
                }
            }
            Self::Remembered { id, consumer, scope, expired } => {
                let word = if *expired { "expired from" } else { "in" };
                write!(f, "{word} the inbox of {consumer:?} {scope:?}: {id}")
            }
            Self::Applied { id, consumer, scope, nth } => {
                write!(f, "effect {nth} of {consumer:?} {scope:?}: {id}")
            }
            Self::DeadLetter { id, consumer } => write!(f, "dead letter of {consumer:?}: {id}"),
            Self::Step { effect: StepEffect { saga, step, service, is_undo, amount } } => {
                let word = if *is_undo { "undid" } else { "did" };
                write!(f, "{service} {word} {step} of saga {saga}, amount {amount}")
            }
            Self::Saga { saga, state } => write!(f, "saga {saga} is {state:?}"),
            Self::Lease { event: LeaseEvent::Granted { lease, epoch, holder } } => {
                write!(f, "lease {lease} granted to {holder} with epoch {epoch}")
            }
            Self::Lease { event: LeaseEvent::Wrote { lease, epoch, holder, applied, what } } => {
                let taken = if *applied { "taken" } else { "refused" };
                write!(f, "lease {lease}: {holder} writes {what} under epoch {epoch}: {taken}")
            }
        }
    }
}
