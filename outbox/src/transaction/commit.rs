//! Failures of a commit.

use std::error::Error;

use message::{Fault, MessageId};

use crate::enqueue_error::EnqueueError;
use crate::remedy::Remedy;

/// A commit whose answer was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownCommit {
    /// The messages that the transaction added. If one of them exists, it committed.
    pub message_ids: Vec<MessageId>,
    /// The transaction's id, where the database has one.
    pub transaction: Option<String>,
}

/// Why a commit did not happen, or may not have happened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// An earlier enqueue failed, or an earlier start of a saga, and the business rows would have
    /// been stored without it. Everything is rolled back.
    #[error("the transaction is rolled back because an earlier call in it failed: {first}")]
    Poisoned {
        /// The first error.
        first: String,
        /// The remedy for the first error.
        remedy: Remedy,
        /// Whether the same transaction may succeed on another run.
        retryable: bool,
    },
    /// The staged messages could not be enqueued. Everything is rolled back.
    #[error("the transaction is rolled back because its staged messages could not be enqueued")]
    Staged(#[source] EnqueueError),
    /// An earlier statement failed and its error was not passed on. The database has already rolled
    /// everything back.
    #[error("a statement of the transaction had failed before, so the database has rolled everything back")]
    Aborted(#[source] Box<dyn Error + Send + Sync>),
    /// The transaction had already ended: a nested `begin()` was dropped before its answer or
    /// refused, or SQL ran COMMIT or ROLLBACK. Rows written before that are rolled back, or
    /// committed by that COMMIT. Rows written after it are stored; staged messages are not.
    #[error("{}; await every begin(), and use commit() and rollback()", migrations::own_transaction::ENDED)]
    Ended,
    /// The database refused to commit. Everything is rolled back.
    #[error("the database refused to commit; everything is rolled back")]
    Refused {
        /// The client library's error.
        #[source]
        source: Box<dyn Error + Send + Sync>,
        /// Whether the same transaction may succeed on another run.
        retryable: bool,
    },
    /// The connection was lost before the database carried out COMMIT. Everything is rolled back.
    #[error("the connection was lost before the commit; everything is rolled back")]
    Lost(#[source] Box<dyn Error + Send + Sync>),
    /// The connection was lost during COMMIT, or an error answered it that proves no rollback, as
    /// the errors of a pooler that lost its server. The commit may or may not have happened.
    /// [`Outbox::resolve`](crate::Outbox::resolve) looks it up.
    #[error("the answer to the commit was lost; it is unknown whether the transaction was committed")]
    Unknown {
        /// The commit to look up.
        commit: UnknownCommit,
        /// The client library's error.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl CommitError {
    /// Returns whether the whole transaction may succeed on another run. Never for
    /// [`CommitError::Unknown`].
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Poisoned { retryable, .. } | Self::Refused { retryable, .. } => *retryable,
            Self::Staged(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// Returns what the work should do. [`Remedy::RunAgain`] also follows a commit with an unknown
    /// outcome, which must be resolved first.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Poisoned { remedy, .. } => *remedy,
            Self::Staged(error) => error.remedy(),
            Self::Lost(_) | Self::Unknown { .. } | Self::Refused { retryable: true, .. } => Remedy::RunAgain,
            Self::Aborted(_) | Self::Ended | Self::Refused { .. } => Remedy::Correct,
        }
    }

    /// Returns the party at fault: the message, the database ([`Fault::Broker`]: wait and retry),
    /// or the operator, which here includes the calling program.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Poisoned { remedy, .. } => remedy.fault(),
            Self::Staged(error) => error.fault(),
            Self::Lost(_) | Self::Unknown { .. } | Self::Refused { retryable: true, .. } => Fault::Broker,
            Self::Aborted(_) | Self::Ended | Self::Refused { .. } => Fault::Operator,
        }
    }
}
