//! Errors between relay and log.

use std::error::Error;
use std::time::Duration;

use message::Fault;
use migrations::{MigrateError, SchemaError};

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

    /// Returns whether no wait can heal it: the tables belong to another build of this program, or
    /// the server is a product on which the relay does not work. Everything else can come right
    /// while a relay waits: passwords rotate, a database is restored, migrations are applied.
    #[must_use]
    pub fn is_final(&self) -> bool {
        let Self::Operator { source: Some(source), .. } = self else { return false };
        let of_schema = |error: &MigrateError| {
            matches!(error, MigrateError::Schema(SchemaError::TooNew { .. } | SchemaError::Changed { .. }))
        };
        source.downcast_ref::<MigrateError>().is_some_and(of_schema) || source.is::<WrongProduct>()
    }
}

/// The source of an error about a server that is another product than the relay works on.
#[derive(Debug, thiserror::Error)]
#[error("another product")]
// SQLite is one product.
#[cfg_attr(not(feature = "postgres"), allow(dead_code))]
pub(crate) struct WrongProduct;

/// The beginning of what was stored, for an error about it.
pub(crate) fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(64).collect::<String>())
}

#[cfg(test)]
mod tests {
    use migrations::Line;

    use super::*;

    #[test]
    fn only_another_build_or_product_is_final() {
        let schema = |error| LogError::from(MigrateError::from(error));
        let line = Line::Outbox;
        assert!(schema(SchemaError::TooNew { line, database: 99, build: 11 }).is_final());
        // A restore or a migration that is under way ends by itself.
        assert!(!schema(SchemaError::Missing { line }).is_final());
        assert!(!schema(SchemaError::TooOld { line, database: 1, build: 11 }).is_final());
        assert!(!LogError::operator("password authentication failed").is_final());
        assert!(!LogError::Unavailable { reason: String::from("away"), source: None }.is_final());
        let wrong = LogError::Operator { reason: String::new(), source: Some(Box::new(WrongProduct)) };
        assert!(wrong.is_final());
    }
}
