//! Errors of databases that need an answer of their own. [`SqlErrorKind`] has all others.

use migrations::SqlErrorKind;
use sqlx::Error;
use sqlx::error::DatabaseError;

/// Whether the statement failed because its transaction had failed before (SQLSTATE 25P02).
pub(crate) fn is_aborted_transaction(error: &Error) -> bool {
    error.as_database_error().and_then(DatabaseError::code).as_deref() == Some("25P02")
}

/// Whether a statement failed because a table of the outbox does not exist. Names stand in the text
/// only, and SQLite has no code for it either. A table that a trigger of somebody else's misses is
/// another matter.
pub(crate) fn is_missing_table(error: &Error) -> bool {
    let Some(answer) = error.as_database_error() else { return false };
    let is_missing =
        answer.code().as_deref() == Some("42P01") || answer.message().starts_with("no such table: ");
    is_missing && answer.message().contains("outbox_")
}

/// Why one client gets prepared statements of another, and what to do about it.
pub(crate) const SHARED_SESSIONS: &str = "\
    a pooler shares its sessions between clients and does not keep their prepared statements apart (PgBouncer in \
    transaction mode before 1.21, or with max_prepared_statements = 0); point the URL at the server or at a pooler in \
    session mode, or use PgBouncer 1.21 or newer with max_prepared_statements above 0";

/// Why the session holds prepared statements of another client, and what to do; `None` for any
/// other error.
#[must_use]
pub fn shared_session(error: &Error) -> Option<&'static str> {
    SqlErrorKind::is_of_pooler(error).then_some(SHARED_SESSIONS)
}
