//! Errors between relay and log.

use std::error::Error;
use std::time::Duration;

use message::Fault;

/// Why the log could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The connection is lost, refused, or the database is shutting down: reconnect, take the lease
    /// and load the cursor anew.
    #[error("the database is not available: {reason}")]
    Unavailable {
        /// The failure.
        reason: String,
        /// The client library's error.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The operator must act: wrong credentials, missing privileges, a schema that does not fit.
    #[error("{reason}")]
    Operator {
        /// The problem, and what to do about it.
        reason: String,
        /// The underlying error.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The database did not answer in time; the outcome is unknown. Treat as
    /// [`LogError::Unavailable`].
    #[error("the database did not answer within {waited:?}")]
    Timeout {
        /// How long was waited.
        waited: Duration,
    },
    /// Stored state of the relay cannot be read: written by another version, or damaged.
    #[error("the stored {what} of the relay cannot be read: {problem}")]
    Corrupt {
        /// The part of the stored state.
        what: &'static str,
        /// The value and what is wrong with it.
        problem: String,
    },
}

impl LogError {
    /// Whose fault it is: the database's (retry) counts as the broker's side, everything else is
    /// the operator's.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Unavailable { .. } | Self::Timeout { .. } => Fault::Broker,
            Self::Operator { .. } | Self::Corrupt { .. } => Fault::Operator,
        }
    }
}

/// The beginning of what was stored, for an error about it.
pub(crate) fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(64).collect::<String>())
}
