//! Failures of a commit.

use std::error::Error;

use message::{Fault, MessageId};
use migrations::SqlErrorKind;

use crate::enqueue_error::EnqueueError;
use crate::failure::is_aborted_transaction;
use crate::remedy::Remedy;
use crate::store_error::StoreError;

/// A commit whose answer was lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnknownCommit {
    /// The messages that the transaction added. If one of them exists, it committed. Empty after a
    /// commit of an inbox or of an idempotency key whose time limit has passed.
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
    /// The rows that prove the work, such as those of an inbox or of an idempotency key, are not in
    /// the transaction, or could not be checked. Everything is rolled back.
    #[error("the transaction was rolled back: {reason}")]
    RolledBack {
        /// How this was detected.
        reason: &'static str,
        /// The error of the check, if it failed with one.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
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
    /// The connection was lost during COMMIT, or its answer was an error that proves no rollback,
    /// such as one of a pooler that lost its server. The commit may or may not have happened.
    /// [`Outbox::resolve`](crate::Outbox::resolve) looks it up. In an inbox and under an
    /// idempotency key, the next delivery or request finds the outcome.
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
    /// Interprets the error of a statement before COMMIT.
    #[doc(hidden)]
    #[must_use]
    pub fn before(error: sqlx::Error) -> Self {
        match SqlErrorKind::of(&error) {
            _ if is_aborted_transaction(&error) => Self::Aborted(Box::new(error)),
            SqlErrorKind::Lost => Self::Lost(Box::new(error)),
            kind => Self::Refused { retryable: kind == SqlErrorKind::Conflict, source: Box::new(error) },
        }
    }

    /// Interprets the error of COMMIT. Unless it [proves a
    /// rollback](SqlErrorKind::says_rolled_back), the outcome is unknown.
    #[doc(hidden)]
    #[must_use]
    pub fn at(commit: UnknownCommit, error: sqlx::Error) -> Self {
        let retryable = SqlErrorKind::of(&error) == SqlErrorKind::Conflict;
        let is_rolled_back = SqlErrorKind::says_rolled_back(&error);
        let source = Box::new(error);
        if is_rolled_back { Self::Refused { source, retryable } } else { Self::Unknown { commit, source } }
    }

    /// Returns whether it is certain that nothing was committed. Rows that were written after the
    /// transaction [`Ended`](Self::Ended) are stored all the same.
    #[must_use]
    pub fn is_rolled_back(&self) -> bool {
        !matches!(self, Self::Unknown { .. })
    }

    /// Returns whether it failed without anyone's fault: an outage, a lost conflict, or a lost
    /// answer.
    #[doc(hidden)]
    #[must_use]
    pub fn is_innocent(&self) -> bool {
        self.remedy() == Remedy::RunAgain
    }

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
            Self::Refused { source, .. } | Self::RolledBack { source: Some(source), .. } => {
                remedy_of(&**source)
            }
            Self::Aborted(_) | Self::Ended | Self::RolledBack { source: None, .. } => Remedy::Correct,
        }
    }

    /// Returns the party at fault: the message, the database ([`Fault::Broker`]: wait and retry),
    /// or the operator, which here includes the calling program.
    #[must_use]
    pub fn fault(&self) -> Fault {
        self.remedy().fault()
    }
}

/// Returns what the work should do about the error of a commit or of a check before it.
fn remedy_of(cause: &(dyn Error + Send + Sync + 'static)) -> Remedy {
    if let Some(error) = cause.downcast_ref::<StoreError>() {
        return error.remedy();
    }
    match cause.downcast_ref().map(SqlErrorKind::of) {
        Some(SqlErrorKind::Refused) | None => Remedy::Correct,
        Some(_) => Remedy::RunAgain,
    }
}
