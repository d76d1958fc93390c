//! How a commit can fail.

use std::error::Error;

use message::{Fault, MessageId};

use crate::enqueue_error::EnqueueError;

/// A commit whose outcome nobody has heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownCommit {
    /// The messages that the transaction added: when one is found, it committed.
    pub message_ids: Vec<MessageId>,
    /// The transaction's id, where the database has one.
    pub transaction: Option<String>,
}

/// Why a commit did not happen, or may not have.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// An enqueue had failed before: the business rows would have been stored without their
    /// message. Everything is rolled back.
    #[error("the transaction is rolled back because a message could not be enqueued: {first}")]
    Poisoned {
        /// The first error.
        first: String,
        /// Whether the same transaction may succeed when run again.
        retryable: bool,
    },
    /// The staged messages could not be enqueued. Everything is rolled back.
    #[error("the transaction is rolled back because its staged messages could not be enqueued")]
    Staged(#[source] EnqueueError),
    /// A statement had failed before, its error was not passed on, and the database had rolled
    /// everything back.
    #[error("a statement of the transaction had failed before, so the database has rolled everything back")]
    Aborted(#[source] Box<dyn Error + Send + Sync>),
    /// The transaction was ended before: by a `begin()` inside of it that was dropped before its
    /// answer or refused, or by a COMMIT or ROLLBACK in SQL. What was written until then is rolled
    /// back (or was committed by that COMMIT), what was written after it is stored.
    #[error("{}; await every begin(), and use commit() and rollback()", migrations::own_transaction::ENDED)]
    Ended,
    /// The database refused to commit. Everything is rolled back.
    #[error("the database refused to commit; everything is rolled back")]
    Refused {
        /// The client library's error.
        #[source]
        source: Box<dyn Error + Send + Sync>,
        /// Whether the same transaction may succeed when run again.
        retryable: bool,
    },
    /// The connection was lost before COMMIT was sent. Everything is rolled back.
    #[error("the connection was lost before the commit; everything is rolled back")]
    Lost(#[source] Box<dyn Error + Send + Sync>),
    /// The connection was lost during COMMIT: it may have happened or not.
    /// [`Outbox::resolve`](crate::Outbox::resolve) finds out.
    #[error("the connection was lost during the commit; it is unknown whether it happened")]
    Unknown {
        /// The commit to look for.
        commit: UnknownCommit,
        /// The client library's error.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl CommitError {
    /// Whether the whole transaction, run again, may succeed. Never for [`CommitError::Unknown`].
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Poisoned { retryable, .. } | Self::Refused { retryable, .. } => *retryable,
            Self::Staged(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// Whose fault it is: the message's, the database's ([`Fault::Broker`]: wait and try again), or
    /// the operator's, which here includes the program's own.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Poisoned { .. } => Fault::Message,
            Self::Staged(error) => error.fault(),
            Self::Lost(_) | Self::Unknown { .. } | Self::Refused { retryable: true, .. } => Fault::Broker,
            Self::Aborted(_) | Self::Ended | Self::Refused { .. } => Fault::Operator,
        }
    }
}
