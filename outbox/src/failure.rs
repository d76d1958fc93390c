//! Database errors that are handled specially. [`SqlErrorKind`] classifies all others.

use migrations::SqlErrorKind;
use sqlx::Error;
use sqlx::error::DatabaseError;

/// Returns whether the statement failed because its transaction had already failed (SQLSTATE
/// 25P02).
pub(crate) fn is_aborted_transaction(error: &Error) -> bool {
    error.as_database_error().and_then(DatabaseError::code).as_deref() == Some("25P02")
}

/// Returns whether a statement failed because a table of the outbox does not exist. Only the text
/// names the table, and SQLite has no error code for it. A table that is missing in another party's
/// trigger does not count.
pub(crate) fn is_missing_table(error: &Error) -> bool {
    let Some(answer) = error.as_database_error() else { return false };
    let is_missing =
        answer.code().as_deref() == Some("42P01") || answer.message().starts_with("no such table: ");
    is_missing && answer.message().contains("outbox_")
}

/// The reason why a client finds prepared statements of another client, and the remedy.
pub const SHARED_SESSIONS: &str = "\
    a pooler shares its sessions between clients and does not keep their prepared statements apart (PgBouncer in \
    transaction mode before 1.21, or with max_prepared_statements = 0); point the URL at the server or at a pooler in \
    session mode, or use PgBouncer 1.21 or newer with max_prepared_statements above 0";

/// Returns why the session holds prepared statements of another client, with the remedy; `None` for
/// any other error.
#[must_use]
pub fn shared_session(error: &Error) -> Option<&'static str> {
    SqlErrorKind::is_of_pooler(error).then_some(SHARED_SESSIONS)
}
