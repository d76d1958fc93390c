//! Reasons why a message was not enqueued.

use std::error::Error;

use message::token::{Drift, MintError, ScheduledTooFar};
use message::{Fault, IdReused, InvalidMessage, MessageId, Oversize, Topic};
use migrations::SqlErrorKind;

use crate::remedy::Remedy;

/// Why a message was not enqueued. Roll the transaction back: otherwise its business rows commit
/// without their message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// The message breaks a rule. Nothing was sent to the database.
    #[error(transparent)]
    Invalid(#[from] InvalidMessage),
    /// The message is larger than its destination accepts. Nothing was sent to the database.
    #[error(transparent)]
    Oversize(Box<Oversize>),
    /// The supplied id is older, or further ahead of the database's clock, than the outbox accepts
    /// ([`OutboxBuilder::ids_accepted`](crate::OutboxBuilder::ids_accepted)). Consumers would
    /// refuse it.
    #[error(transparent)]
    Drift(Box<Drift>),
    /// The message's id is made now, and at delivery it would be older than consumers accept
    /// ([`OutboxBuilder::ids_accepted`](crate::OutboxBuilder::ids_accepted)). Every consumer would
    /// refuse it. Nothing was sent to the database.
    #[error(transparent)]
    ScheduledTooFar(#[from] ScheduledTooFar),
    /// No id could be made for the message ([`OutboxBuilder::ids`](crate::OutboxBuilder::ids)).
    #[error(transparent)]
    NoId(#[from] MintError),
    /// The outbox made an id that already exists: its generator
    /// ([`OutboxBuilder::ids`](crate::OutboxBuilder::ids)) made the same id twice. Nothing was
    /// stored.
    #[error(
        "the id generated for a message for topic {topic} already exists; the generator must never return \
         an id twice"
    )]
    NotUnique {
        /// The topic of the first message in the same statement.
        topic: Topic,
    },
    /// The same message was enqueued before under this id, and the caller asked for an error.
    #[error("message id {id} for topic {topic} was already enqueued")]
    DuplicateId {
        /// The id.
        id: MessageId,
        /// The topic of the refused message.
        topic: Topic,
    },
    /// The id was enqueued before for another message: its kind, content type, payload, topic, key
    /// or a header differs. An outbox publishes one message under an id, so this one would be lost.
    /// Trace context, `deliver_at` and
    /// [headers that vary](crate::OutboxBuilder::varying_headers) are not compared.
    #[error(transparent)]
    IdReused(#[from] IdReused),
    /// The id conflicts with a row that this transaction cannot see. Run the transaction again.
    #[error(
        "message id {id} conflicts with a row that this transaction cannot see; run the transaction again"
    )]
    Concurrent {
        /// The id.
        id: MessageId,
    },
    /// An earlier error has made the transaction unusable.
    #[error("an earlier error has made this transaction unusable, roll it back: {first}")]
    Poisoned {
        /// The first error.
        first: String,
        /// The remedy for the first error.
        remedy: Remedy,
        /// Whether the same transaction may succeed on another run.
        retryable: bool,
    },
    /// A call that enqueues or starts a saga was dropped before it ended, so a part of its rows may
    /// be stored.
    #[error(
        "a call that enqueues or starts a saga was dropped before it ended; await it outside of select! and \
         timeout"
    )]
    Dropped,
    /// The transaction was begun without an outbox. The program is at fault.
    #[error(
        "there is no outbox to enqueue with: give the consumer one with .outbox(..), or the inbox or the keys with \
         .with_outbox(..)"
    )]
    NoOutbox,
    /// The transaction had already ended: a nested `begin()` was dropped before its answer, or
    /// refused. The message would have been committed separately.
    #[error("the message was not stored: {}", migrations::own_transaction::ENDED)]
    Ended,
    /// The database has no outbox tables in its schema or `search_path`. The operator is at fault.
    #[error(
        "the tables of the outbox are missing in this database, schema or search_path; run `relay migrate up --line outbox`"
    )]
    NoTables(#[source] Box<dyn Error + Send + Sync>),
    /// The database refused the statement or became unavailable.
    #[error("the database could not store the message")]
    Database {
        /// The client library's error.
        #[source]
        source: Box<dyn Error + Send + Sync>,
        /// Whether the same transaction may succeed on another run (serialization failure,
        /// deadlock, busy).
        retryable: bool,
    },
}

impl EnqueueError {
    /// Returns the party at fault: the message, the database ([`Fault::Broker`]: wait and retry) or
    /// the operator.
    #[must_use]
    pub fn fault(&self) -> Fault {
        self.remedy().fault()
    }

    /// Returns what the work around the enqueue should do.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Database { source, .. } => match source.downcast_ref::<sqlx::Error>().map(SqlErrorKind::of)
            {
                Some(SqlErrorKind::Refused) | None => Remedy::Correct,
                Some(_) => Remedy::RunAgain,
            },
            Self::Concurrent { .. } | Self::NoId(_) => Remedy::RunAgain,
            Self::NoTables(_) | Self::NoOutbox => Remedy::Repair,
            Self::NotUnique { .. } | Self::Ended | Self::Dropped => Remedy::Correct,
            Self::Poisoned { remedy, .. } => *remedy,
            Self::Invalid(_)
            | Self::Oversize(_)
            | Self::Drift(_)
            | Self::ScheduledTooFar(_)
            | Self::DuplicateId { .. }
            | Self::IdReused(_) => Remedy::GiveUp,
        }
    }

    /// Returns whether the whole transaction may succeed on another run.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Concurrent { .. } | Self::NoId(_) => true,
            Self::Database { retryable, .. } | Self::Poisoned { retryable, .. } => *retryable,
            _ => false,
        }
    }
}

impl From<Oversize> for EnqueueError {
    fn from(oversize: Oversize) -> Self {
        Self::Oversize(Box::new(oversize))
    }
}

impl From<sqlx::Error> for EnqueueError {
    fn from(error: sqlx::Error) -> Self {
        let retryable = SqlErrorKind::of(&error) == SqlErrorKind::Conflict;
        Self::Database { source: Box::new(error), retryable }
    }
}
