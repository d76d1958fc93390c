//! Reasons why a message was not handled.

use std::error::Error as StdError;

use message::error_text::chain;

use crate::admit::Refusal;
use crate::error::Error;

/// Why a message was not handled. A handler returns it; `?` converts errors of the driver and of
/// operations.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure<D: StdError + 'static> {
    /// The inbox refused the message.
    #[error("the inbox refused it: {0}")]
    Refused(Refusal),
    /// The handler rejects the message: no further attempt would help.
    #[error("{0}")]
    Rejected(String),
    /// The handler failed; another attempt may succeed.
    #[error("{0}")]
    Failed(String),
    /// A statement or an operation failed. If another transaction or an outage is the cause, do not
    /// count it.
    #[error(transparent)]
    Error(#[from] Error<D>),
}

impl<D: StdError + 'static> Failure<D> {
    /// Makes the failure of a handler that may succeed on another attempt.
    #[must_use]
    pub fn retry(why: impl Into<String>) -> Self {
        Self::Failed(why.into())
    }

    /// Makes the failure of a handler that no further attempt helps.
    #[must_use]
    pub fn reject(why: impl Into<String>) -> Self {
        Self::Rejected(why.into())
    }

    /// Returns the error of the statement or operation. The other failures of a transaction that
    /// handles nothing cannot occur.
    #[must_use]
    pub fn into_error(self) -> Error<D> {
        match self {
            Self::Error(error) => error,
            _ => Error::Unfinished,
        }
    }

    /// Returns the text for operators: the error and its sources.
    pub(crate) fn text(&self) -> String {
        chain(self)
    }
}

impl<D: StdError + 'static> From<D> for Failure<D> {
    fn from(error: D) -> Self {
        Self::Error(Error::Database(error))
    }
}
