//! Observations of a message, a row or a lease, one at a time.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use uuid::Uuid;

use crate::history::{LeaseEvent, Outcome, ParkedEntry, SagaState, StepEffect};

/// Something that was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "seen", rename_all = "snake_case")]
pub enum Event {
    /// A transaction of a client.
    Operation {
        /// Its name.
        operation: Arc<str>,
        /// The outcome that the client was told.
        outcome: Outcome,
        /// When it began.
        started: Option<u64>,
        /// When its outcome was known.
        ended: Option<u64>,
        /// The messages that it enqueued and kept.
        messages: Vec<Uuid>,
        /// The business rows that it wrote and kept.
        rows: Vec<Arc<str>>,
    },
    /// A business row is there.
    Business {
        /// Its name.
        row: Arc<str>,
    },
    /// An outbox row is there.
    Outbox {
        /// The message id.
        id: Uuid,
        /// Where it stands.
        position: i64,
        /// Its ordering key.
        key: Option<Arc<str>>,
        /// When it may leave at the earliest, in milliseconds since 1970.
        due: Option<i64>,
        /// Whether the relay says that it is done with it.
        done: Option<bool>,
    },
    /// Retention removed an outbox row.
    Removed {
        /// The message id.
        id: Uuid,
    },
    /// It is parked.
    Parked {
        /// The message id.
        id: Uuid,
        /// Why.
        state: ParkedEntry,
    },
    /// The broker has it.
    Published {
        /// The message id.
        id: Option<Uuid>,
        /// Partition or queue.
        place: Arc<str>,
        /// How many occurrences the topic_read saw before, in all places.
        nth: usize,
    },
    /// An inbox remembers it.
    Remembered {
        /// The message id.
        id: Uuid,
        /// The consumer.
        consumer: Arc<str>,
        /// The scope.
        scope: Arc<str>,
        /// Whether retention has removed the row since.
        expired: bool,
    },
    /// It took effect.
    Applied {
        /// The message id.
        id: Uuid,
        /// The consumer.
        consumer: Arc<str>,
        /// The scope.
        scope: Arc<str>,
        /// How many effects this consumer had before.
        nth: usize,
    },
    /// A consumer put it state.
    DeadLetter {
        /// The message id.
        id: Uuid,
        /// The consumer.
        consumer: Arc<str>,
    },
    /// Something happened to a lease.
    Lease {
        /// The event.
        #[serde(flatten)]
        event: LeaseEvent,
    },
    /// A service did or undid a step of a saga.
    Step {
        /// The effect.
        #[serde(flatten)]
        effect: StepEffect,
    },
    /// The state of a saga.
    Saga {
        /// Which.
        saga: Arc<str>,
        /// Its state.
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
                write!(f, "operation {operation} from {started} to {ended}, told {told}: messages")?;
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
                    Some(true) => f.write_str(", done says the relay"),
                    Some(false) => f.write_str(", open says the relay"),
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
