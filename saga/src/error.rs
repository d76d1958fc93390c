//! Errors from outside a saga's own code.

use std::error::Error;

use inbox::HandlerError;
use message::{Fault, InvalidText, error_text};
use migrations::{MigrateError, SqlErrorKind};

use crate::key::SagaId;

/// The longest error text that is stored, in bytes.
const ERROR_BYTES_MAX: usize = 2_048;

/// The database could not run an operation that sagas need. Nothing took effect.
#[derive(Debug, thiserror::Error)]
#[error("the database could not {what}")]
pub struct StoreError {
    what: &'static str,
    kind: SqlErrorKind,
    #[source]
    source: sqlx::Error,
}

impl StoreError {
    /// Returns an adapter for `map_err`.
    pub(crate) fn during(what: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |error| Self { what, kind: SqlErrorKind::of(&error), source: error }
    }

    /// Returns the error of the client library.
    pub(crate) fn into_sqlx(self) -> sqlx::Error {
        self.source
    }

    /// Returns the party at fault: the infrastructure ([`Fault::Broker`]: wait and retry) or the
    /// operator.
    #[must_use]
    pub fn fault(&self) -> Fault {
        if self.is_transient() { Fault::Broker } else { Fault::Operator }
    }

    /// Returns whether the same call can succeed later without anyone's action.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.kind != SqlErrorKind::Refused
    }
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
    /// A type has a name that cannot be used.
    #[error(transparent)]
    Name(#[from] InvalidText),
    /// One version of a type was registered twice.
    #[error("version {version} of the saga type {saga_type} was registered twice; give each code a version")]
    Twice {
        /// The type.
        saga_type: String,
        /// The version.
        version: u16,
    },
}

/// The reason why a saga was not started. Roll the transaction back: its other rows would commit
/// without the saga. After a refusal ([`StartError::is_refusal`]) it can still be used.
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
    /// A saga of this name was started with another input, and is still remembered.
    #[error("the saga {id} was started with another input; give this one an id of its own")]
    KeyReused {
        /// The saga.
        id: SagaId,
    },
    /// The database refused or is unavailable.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<StartError> for HandlerError {
    /// Classifies the error by its cause, for the handler of a consumer. The same message always
    /// names the same saga with the same input: if these are at fault, it is rejected. With a type
    /// that is unknown here it is tried again, because a newer program may know it. A database
    /// error is treated like one of the handler's own statements.
    fn from(error: StartError) -> Self {
        match error {
            StartError::Store(error) => Self::from(error.into_sqlx()),
            error @ StartError::UnknownType { .. } => Self::retry(error.to_string()).with_source(error),
            error => Self::reject(error.to_string()).with_source(error),
        }
    }
}

impl StartError {
    /// Returns whether the arguments are at fault.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        !matches!(self, Self::Store(_))
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
