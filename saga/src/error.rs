//! Errors from outside a saga's own code.

use std::error::Error;

use inbox::HandlerError;
use message::{InvalidText, OutOfBounds, error_text};
use migrations::MigrateError;
use migrations::own_transaction::ENDED;
pub use outbox::StoreError;
use outbox::{EnqueueError, FailedCall, Remedy};

use crate::key::SagaId;

/// The longest error text that is stored, in bytes.
const ERROR_BYTES_MAX: usize = 2_048;

/// Returns why a text is not the JSON of a type, without values from the text.
pub(crate) fn misfit<T>(error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    format!("it is not the JSON of {} at line {line} column {column}", std::any::type_name::<T>())
}

/// The reason why the tables of sagas cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The tables are missing, or older or newer than this build; the text names the command to
    /// run.
    #[error(transparent)]
    Schema(#[from] MigrateError),
    /// The database is unavailable.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An option of the worker is out of bounds.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// `attempts_max` is 0.
    #[error("the maximum number of attempts is 0; choose at least 1")]
    NoAttempts,
    /// A type has a name that cannot be used.
    #[error(transparent)]
    Name(#[from] InvalidText),
    /// One version of a type was registered twice.
    #[error(
        "version {version} of the saga type {saga_type} is registered twice; give one of them a new \
             version"
    )]
    Twice {
        /// The type.
        saga_type: String,
        /// The version.
        version: u16,
    },
}

/// The reason why a row of a saga was not stored in the caller's transaction.
#[derive(Debug)]
pub(crate) enum Blocked {
    Ended,
    Failed(EnqueueError),
    Store(StoreError),
}

impl From<StoreError> for Blocked {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// The reason why a reply was not stored. Roll the transaction back: its other rows would commit
/// without the reply. An [`OutboxTransaction`](outbox::OutboxTransaction) then refuses to commit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplyError {
    /// The transaction had already ended: a nested `begin()` was dropped before its answer, or
    /// refused. The reply would have been committed separately.
    #[error("the reply was not stored: {ENDED}")]
    Ended,
    /// An earlier call in the transaction failed.
    #[error("the reply was not stored")]
    Poisoned(#[source] EnqueueError),
    /// The database refused or is unavailable.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<Blocked> for ReplyError {
    fn from(blocked: Blocked) -> Self {
        match blocked {
            Blocked::Ended => Self::Ended,
            Blocked::Failed(error) => Self::Poisoned(error),
            Blocked::Store(error) => Self::Store(error),
        }
    }
}

impl From<ReplyError> for HandlerError {
    /// Classifies the error by its cause, for the handler of a consumer. A database error is
    /// treated like one of the handler's own statements.
    fn from(error: ReplyError) -> Self {
        match error {
            ReplyError::Store(error) => error.into(),
            ReplyError::Poisoned(error) => Self::from(error),
            ReplyError::Ended => Self::retry(error.to_string()).with_source(error),
        }
    }
}

impl ReplyError {
    /// Returns the error as its transaction remembers it.
    pub(crate) fn as_failed_call(&self) -> FailedCall {
        let (remedy, retryable) = match self {
            Self::Ended => (Remedy::Correct, false),
            Self::Poisoned(error) => (error.remedy(), error.is_retryable()),
            Self::Store(error) => (error.remedy(), error.is_conflict()),
        };
        FailedCall { first: chain(self), remedy, retryable }
    }
}

/// The reason why a saga was not started. Roll the transaction back: its other rows would commit
/// without the saga. An [`OutboxTransaction`](outbox::OutboxTransaction) then refuses to commit. A
/// [`sqlx::Transaction`] can still be used after a refusal ([`StartError::is_refusal`]).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The type or the id cannot be used.
    #[error(transparent)]
    Name(#[from] InvalidText),
    /// No version of the type is known here.
    #[error(
        "the saga type {saga_type} is unknown here; register it with .saga(..), or with .starts(..) where another \
         process runs it"
    )]
    UnknownType {
        /// The type.
        saga_type: String,
    },
    /// The input cannot be written as JSON, or the function of this type could not read it.
    #[error("the input of {saga_type} cannot be used: {problem}")]
    Input {
        /// The type.
        saga_type: String,
        /// The problem, without values of the input.
        problem: String,
    },
    /// A saga of this name was started with a different input, and is still remembered.
    #[error("the saga {id} was started with a different input; give this one its own id")]
    KeyReused {
        /// The saga.
        id: SagaId,
    },
    /// The transaction had already ended: a nested `begin()` was dropped before its answer, or
    /// refused. The saga would have been started separately.
    #[error("the saga was not started: {ENDED}")]
    Ended,
    /// An earlier call in the transaction failed.
    #[error("the saga was not started")]
    Poisoned(#[source] EnqueueError),
    /// The database refused or is unavailable.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<Blocked> for StartError {
    fn from(blocked: Blocked) -> Self {
        match blocked {
            Blocked::Ended => Self::Ended,
            Blocked::Failed(error) => Self::Poisoned(error),
            Blocked::Store(error) => Self::Store(error),
        }
    }
}

impl From<StartError> for HandlerError {
    /// Classifies the error by its cause, for the handler of a consumer. The same message always
    /// names the same saga with the same input: if these are at fault, it is rejected. If its type
    /// is unknown here, it is retried, because a newer program may know it. A database error is
    /// treated like one of the handler's own statements.
    fn from(error: StartError) -> Self {
        match error {
            StartError::Store(error) => error.into(),
            StartError::Poisoned(error) => Self::from(error),
            error @ (StartError::UnknownType { .. } | StartError::Ended) => {
                Self::retry(error.to_string()).with_source(error)
            }
            error => Self::reject(error.to_string()).with_source(error),
        }
    }
}

impl StartError {
    /// Returns whether the arguments are at fault.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        !matches!(self, Self::Ended | Self::Poisoned(_) | Self::Store(_))
    }

    /// Returns the error as its transaction remembers it, so that a swallowed error has the same
    /// consequence as a returned one.
    pub(crate) fn as_failed_call(&self) -> FailedCall {
        let (remedy, retryable) = match self {
            Self::Ended | Self::UnknownType { .. } => (Remedy::Correct, false),
            Self::Poisoned(error) => (error.remedy(), error.is_retryable()),
            Self::Store(error) => (error.remedy(), error.is_conflict()),
            Self::Name(_) | Self::Input { .. } | Self::KeyReused { .. } => (Remedy::GiveUp, false),
        };
        FailedCall { first: chain(self), remedy, retryable }
    }
}

/// Cuts a text to [`ERROR_BYTES_MAX`] and removes what PostgreSQL does not store.
pub(crate) fn storable(text: &str) -> String {
    error_text::storable(text, ERROR_BYTES_MAX)
}

/// Returns an error and its sources in one line, cut like [`storable`].
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    storable(&error_text::chain(error))
}

#[cfg(test)]
mod tests {
    use inbox::Next;

    use super::*;

    #[test]
    fn a_failed_start_means_for_a_message_what_its_cause_means() {
        let lost = || sqlx::Error::Io(std::io::ErrorKind::BrokenPipe.into());
        let of = |error: StartError| HandlerError::from(error).next();
        assert_eq!(of(StoreError::during("start a saga")(lost()).into()), Next::Database);
        assert_eq!(of(StoreError::during("start a saga")(sqlx::Error::RowNotFound).into()), Next::Retry);
        let id = SagaId::new("checkout", "42").unwrap();
        assert_eq!(of(StartError::KeyReused { id }), Next::Reject);
        let saga_type = String::from("refunds");
        assert_eq!(of(StartError::UnknownType { saga_type }), Next::Retry);
    }
}
