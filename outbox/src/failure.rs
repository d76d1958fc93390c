//! The meaning of client-library errors. Decided by error codes, never by message text.

use sqlx::Error;
use sqlx::error::DatabaseError;

/// The meaning of a database client's error for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The connection is gone or the server is going away; what was under way has an unknown
    /// outcome.
    Lost,
    /// The transaction lost against another one (serialization, deadlock, busy): the same work may
    /// succeed next time.
    Conflict,
    /// The server is up, but cannot serve now: too many connections, a lock or statement timeout.
    Overloaded,
    /// The server refused the statement for its content, or somebody must repair something.
    Refused,
}

/// Classifies an error.
pub(crate) fn classify(error: &Error) -> Failure {
    match error {
        Error::Io(_) | Error::Protocol(_) | Error::WorkerCrashed | Error::PoolClosed | Error::BeginFailed => {
            Failure::Lost
        }
        Error::PoolTimedOut => Failure::Overloaded,
        Error::Database(error) => of_code(error.as_ref()),
        _ => Failure::Refused,
    }
}

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

/// Whether the session holds other prepared statements than this client gave it (SQLSTATE 42P05,
/// 26000).
pub(crate) fn is_of_shared_session(error: &Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    matches!(code.as_deref(), Some("42P05" | "26000"))
}

fn of_code(error: &dyn DatabaseError) -> Failure {
    let code = error.code().unwrap_or_default();
    #[cfg(feature = "sqlite")]
    if error.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some() {
        // Extended result codes keep the primary one in the low byte (sqlite.org/rescode.html).
        return match code.parse::<u32>().unwrap_or_default() & 0xff {
            5 | 6 => Failure::Conflict, // BUSY, LOCKED
            10 => Failure::Lost,        // IOERR
            _ => Failure::Refused,
        };
    }
    match (code.get(..2).unwrap_or_default(), &*code) {
        (_, "40001" | "40P01") => Failure::Conflict,
        // connection exceptions; admin_shutdown, crash_shutdown, cannot_connect_now,
        // database_dropped, idle_session_timeout; I/O errors
        ("08" | "58", _) | (_, "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "40003") => Failure::Lost,
        // insufficient resources; lock_not_available, query_canceled
        ("53", _) | (_, "55P03" | "57014") => Failure::Overloaded,
        _ => Failure::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_without_a_code_are_told_apart() {
        assert_eq!(classify(&Error::Io(std::io::ErrorKind::BrokenPipe.into())), Failure::Lost);
        assert_eq!(classify(&Error::PoolTimedOut), Failure::Overloaded);
        assert_eq!(classify(&Error::RowNotFound), Failure::Refused);
    }
}
