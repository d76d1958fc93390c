//! Errors of the log.

use std::error::Error;
use std::time::Duration;

use message::{Fault, error_text};
use migrations::{MigrateError, SchemaError};

/// Why the log could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The connection is lost or refused, or the database is shutting down. Reconnect, take the
    /// lease again and load the cursor again.
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
        /// The problem and, after a semicolon at the end, the remedy.
        reason: String,
        /// The underlying error.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The database did not answer in time, so the outcome is unknown. Handle it like
    /// [`LogError::Unavailable`].
    #[error("the database did not answer within {waited:?}")]
    Timeout {
        /// How long the relay waited.
        waited: Duration,
    },
    /// Stored state of the relay cannot be read: another version wrote it, or it is damaged.
    #[error("the stored {what} of the relay cannot be read: {problem}")]
    Corrupt {
        /// The part of the stored state.
        what: &'static str,
        /// The value and the problem.
        problem: String,
    },
}

impl LogError {
    /// Returns the party at fault. The database, where a retry helps, counts as [`Fault::Broker`];
    /// everything else is the operator.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Unavailable { .. } | Self::Timeout { .. } => Fault::Broker,
            Self::Operator { .. } | Self::Corrupt { .. } => Fault::Operator,
        }
    }

    /// Returns the remedy with which the reason ends; `None` if there is none. It names no server,
    /// user or file, which not every reader may know. Stored state that cannot be read has none:
    /// its text quotes the database.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        match self {
            Self::Unavailable { reason, .. } | Self::Operator { reason, .. } => error_text::remedy(reason),
            Self::Timeout { .. } | Self::Corrupt { .. } => None,
        }
    }

    /// Adds the cause, if any is known ([`crate::LogStore::cause_of`]).
    #[must_use]
    pub fn caused_by(self, cause: Option<String>) -> Self {
        let Some(cause) = cause else { return self };
        let reason = match &self {
            Self::Unavailable { reason, .. } | Self::Operator { reason, .. } => reason.clone(),
            Self::Timeout { waited } => format!("no answer within {waited:?}"),
            Self::Corrupt { .. } => return self,
        };
        Self::Unavailable { reason: format!("{reason}: {cause}"), source: Some(Box::new(self)) }
    }

    /// Returns whether waiting cannot help: the tables belong to a different build of this program,
    /// or the relay does not support the server's product. Every other problem can end while a
    /// relay waits: passwords rotate, a database is restored, migrations are applied.
    #[must_use]
    pub fn is_final(&self) -> bool {
        let Self::Operator { source: Some(source), .. } = self else { return false };
        let of_schema = |error: &MigrateError| {
            matches!(error, MigrateError::Schema(SchemaError::TooNew { .. } | SchemaError::Changed { .. }))
        };
        source.downcast_ref::<MigrateError>().is_some_and(of_schema) || source.is::<WrongProduct>()
    }
}

/// Marks an error about a server whose product the relay does not support.
#[derive(Debug, thiserror::Error)]
#[error("another product")]
// SQLite has no such variants.
#[cfg_attr(not(feature = "postgres"), allow(dead_code))]
pub(crate) struct WrongProduct;

/// Returns the beginning of a stored text, for an error about it.
pub(crate) fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(64).collect::<String>())
}

#[cfg(test)]
mod tests {
    use migrations::Line;

    use super::*;
    use crate::ExceptionState;

    #[test]
    fn a_text_that_quotes_the_database_has_no_remedy() {
        let unread = ExceptionState::stored("half; done").unwrap_err();
        assert!(matches!(unread, LogError::Corrupt { .. }) && unread.to_string().contains("; "), "{unread}");
        assert_eq!(unread.remedy(), None);
        let refused = LogError::operator("db.example refused (a; b); write the right password");
        assert_eq!(refused.remedy(), Some("write the right password"));
        let away = LogError::Unavailable { reason: String::from("no answer"), source: None };
        let explained = away.caused_by(Some(String::from("t is locked by session 7; end it")));
        assert_eq!(explained.remedy(), Some("end it"));
    }

    #[test]
    fn only_another_build_or_product_is_final() {
        let schema = |error| LogError::from(MigrateError::from(error));
        let line = Line::Outbox;
        assert!(schema(SchemaError::TooNew { line, database: 99, build: 11 }).is_final());
        // A restore or a migration in progress will end.
        assert!(!schema(SchemaError::Missing { line }).is_final());
        assert!(!schema(SchemaError::TooOld { line, database: 1, build: 11 }).is_final());
        assert!(!LogError::operator("password authentication failed").is_final());
        assert!(!LogError::Unavailable { reason: String::from("away"), source: None }.is_final());
        let wrong = LogError::Operator { reason: String::new(), source: Some(Box::new(WrongProduct)) };
        assert!(wrong.is_final());
    }
}
