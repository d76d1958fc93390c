//! Turns errors of the client library into errors of the log.

use std::time::Duration;

use message::{MessageId, error_text};
use migrations::MigrateError;
use migrations::SqlErrorKind;
use outbox::connect::InvalidUrl;
use outbox::connect::{SHARED_SESSIONS, shared_session};

use crate::entry::EntryId;
use crate::error::LogError;

/// Explains a doubt about a cursor that knows an entry which is not in this log.
pub(crate) fn gone(id: EntryId, message_id: MessageId) -> String {
    format!("the relay has read the entry {id} with the message id {message_id}, which is not in this log")
}

/// The remedy for SQLite's answer that another connection writes.
const LOCKED: &str =
    "a producer or a tool (a shell, a backup) keeps open a transaction that has written: let it end";

/// Returns the texts of an error and its causes, with the remedy if the error itself gives no hint.
fn told(error: &sqlx::Error) -> String {
    let told = error_text::chain(error);
    let is_locked = error.as_database_error().is_some_and(|error| error.message() == "database is locked");
    if is_locked { format!("{told}: {LOCKED}") } else { told }
}

impl LogError {
    /// Makes a function for `map_err`. `what` names the operation that failed.
    pub(crate) fn during(what: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |error| {
            let told = told(&error);
            let reason = format!("it could not {what}: {told}");
            match (&error, SqlErrorKind::of(&error)) {
                (sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_), _) => {
                    Self::Corrupt { what: "row", problem: reason }
                }
                _ if SqlErrorKind::is_of_pooler(&error) => Self::Operator {
                    reason: format!("the database refused to {what}: {told}: {SHARED_SESSIONS}"),
                    source: Some(Box::new(error)),
                },
                (_, SqlErrorKind::Refused) => Self::Operator {
                    reason: format!("the database refused to {what}: {told}"),
                    source: Some(Box::new(error)),
                },
                (_, SqlErrorKind::Lost | SqlErrorKind::Conflict | SqlErrorKind::Unavailable) => {
                    Self::Unavailable { reason, source: Some(Box::new(error)) }
                }
            }
        }
    }

    /// Makes an error that an operator must repair.
    pub(crate) fn operator(reason: impl Into<String>) -> Self {
        Self::Operator { reason: reason.into(), source: None }
    }

    /// Makes the error for a log without some of its segments.
    pub(crate) fn without_segments(missing: &str) -> Self {
        Self::operator(format!(
            "the log is read without {missing}, which was detached or dropped: relays would pass its rows and never publish \
             them; run ALTER TABLE outbox_message ATTACH PARTITION for each of them, FOR VALUES IN (the number in its name)"
        ))
    }
}

impl From<MigrateError> for LogError {
    fn from(error: MigrateError) -> Self {
        // The source may be a lost connection. A database outage must not read as the operator's
        // fault.
        let source =
            std::error::Error::source(&error).and_then(|source| source.downcast_ref::<sqlx::Error>());
        let lost = matches!(error, MigrateError::Busy { .. })
            || source.is_some_and(|source| SqlErrorKind::of(source) != SqlErrorKind::Refused);
        let shared = source.and_then(shared_session);
        let reason = error_text::chain(&error);
        match shared {
            // Waiting does not change how a pooler works.
            Some(why) => Self::Operator { reason: format!("{reason}: {why}"), source: Some(Box::new(error)) },
            None if lost => Self::Unavailable { reason, source: Some(Box::new(error)) },
            None => Self::Operator { reason, source: Some(Box::new(error)) },
        }
    }
}

impl From<InvalidUrl> for LogError {
    fn from(error: InvalidUrl) -> Self {
        Self::operator(error.to_string())
    }
}

/// Waits for the database up to `limit`, then drops the call. A server that disappears without
/// closing the connection must not stop a relay.
///
/// # Errors
/// [`LogError::Timeout`].
#[doc(hidden)]
pub async fn in_time<C: Future>(limit: Duration, call: C) -> Result<C::Output, LogError> {
    tokio::time::timeout(limit, call).await.map_err(|_| LogError::Timeout { waited: limit })
}

/// Does the same as [`in_time`] for a call that fails with an error of the log.
pub(crate) async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, LogError>>,
) -> Result<T, LogError> {
    in_time(limit, call).await?
}

#[cfg(all(test, feature = "sqlite"))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use sqlx::sqlite::SqliteConnectOptions;
    use sqlx::{ConnectOptions as _, Executor as _};

    use super::*;

    /// Goal: the error of a file that another connection writes to names the remedy. Oracle: the
    /// error of a second writer.
    #[tokio::test]
    async fn a_locked_file_is_told_with_the_remedy() {
        let file = std::env::temp_dir().join(format!("locked-{}.db", std::process::id()));
        let options =
            SqliteConnectOptions::new().filename(&file).create_if_missing(true).busy_timeout(Duration::ZERO);
        let mut producer = options.connect().await.unwrap();
        producer.execute("BEGIN IMMEDIATE").await.unwrap();
        let mut relay = options.connect().await.unwrap();
        let refused =
            relay.execute("BEGIN IMMEDIATE").await.map(drop).map_err(LogError::during("renew the lease"));
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("keeps open a transaction that has written"), "{text}");
        drop((producer, relay));
        std::fs::remove_file(file).unwrap();
    }
}
