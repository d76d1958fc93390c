//! Why a message was not enqueued.

use std::error::Error;

use message::limits::Oversize;
use message::token::{Drift, MintError};
use message::{Fault, MessageId, Topic};
use migrations::SqlErrorKind;
use time::OffsetDateTime;

use crate::new_message::InvalidMessage;

/// Why a message was not enqueued. The transaction must be rolled back: the business rows in it
/// would commit without their message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// The message breaks a rule. Nothing was sent to the database.
    #[error(transparent)]
    Invalid(#[from] InvalidMessage),
    /// The message is larger than its destination takes. Nothing was sent to the database.
    #[error(transparent)]
    Oversize(Box<Oversize>),
    /// The supplied id is older, or further ahead of the database's clock, than the outbox accepts
    /// ([`OutboxBuilder::ids_accepted`](crate::OutboxBuilder::ids_accepted)): consumers would
    /// refuse it.
    #[error(transparent)]
    Drift(Box<Drift>),
    /// The message would be delivered when its id, made now, is older than consumers accept
    /// ([`OutboxBuilder::ids_accepted`](crate::OutboxBuilder::ids_accepted)): each of them would
    /// refuse it. Nothing was sent to the database.
    #[error(
        "message {id} is to be delivered at {deliver_at}; consumers accept its id until {latest_at}, so none would apply \
         it: enqueue it later, or give the inboxes a longer retention and the outbox the same with ids_accepted"
    )]
    ScheduledTooFar {
        /// The id.
        id: MessageId,
        /// When it should be delivered.
        deliver_at: OffsetDateTime,
        /// The latest time at which it may be.
        latest_at: OffsetDateTime,
    },
    /// No id could be made for the message ([`OutboxBuilder::ids`](crate::OutboxBuilder::ids)).
    #[error(transparent)]
    NoId(#[from] MintError),
    /// An id that the outbox made for a message exists already: what makes its ids
    /// ([`OutboxBuilder::ids`](crate::OutboxBuilder::ids)) makes one twice. Nothing was stored.
    #[error(
        "an id that was made for a message for topic {topic} exists already; what makes ids must never make one twice"
    )]
    NotUnique {
        /// The topic of the first message in the same statement.
        topic: Topic,
    },
    /// The id was enqueued before with the same content, and the caller asked for an error.
    #[error("message id {id} for topic {topic} was enqueued before")]
    DuplicateId {
        /// The id.
        id: MessageId,
        /// The topic of the refused message.
        topic: Topic,
    },
    /// The id was enqueued before with another event type, content type or payload: two facts under
    /// one identity, of which consumers would apply only one.
    #[error(
        "message id {id} for topic {topic} was enqueued before with another content; one id names one fact: derive \
         it from everything that makes the fact, or use a fresh id"
    )]
    IdReused {
        /// The id.
        id: MessageId,
        /// The topic of the refused message.
        topic: Topic,
    },
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
    },
    /// The transaction was ended before: by a `begin()` inside of it that was dropped before its
    /// answer or refused. The message would have been stored by itself.
    #[error("the message was not stored: {}", migrations::own_transaction::ENDED)]
    Ended,
    /// The database has no tables of the outbox where it looks for them. The operator's fault.
    #[error(
        "the tables of the outbox are missing in this database, schema or search_path; run `relay migrate up --line outbox`"
    )]
    NoTables(#[source] Box<dyn Error + Send + Sync>),
    /// The database refused or went away.
    #[error("the database could not store the message")]
    Database {
        /// The client library's error.
        #[source]
        source: Box<dyn Error + Send + Sync>,
        /// Whether the same transaction may succeed when run again (serialization failure,
        /// deadlock, busy).
        retryable: bool,
    },
}

impl EnqueueError {
    /// Whose fault it is: the message's, the database's ([`Fault::Broker`]: wait and try again) or
    /// the operator's.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Database { source, .. } => match source.downcast_ref::<sqlx::Error>().map(SqlErrorKind::of)
            {
                Some(SqlErrorKind::Refused) | None => Fault::Operator,
                Some(_) => Fault::Broker,
            },
            Self::Concurrent { .. } | Self::NoId(_) => Fault::Broker,
            Self::NotUnique { .. } | Self::Ended | Self::NoTables(_) => Fault::Operator,
            _ => Fault::Message,
        }
    }

    /// Whether the whole transaction, run again, may succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Concurrent { .. } | Self::NoId(_) | Self::Database { retryable: true, .. })
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
