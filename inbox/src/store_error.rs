//! A database that did not do what it was asked.

use std::error::Error;

use message::Fault;

/// The kind of a database error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// Unreachable, overloaded or going down: wait and try again, without end.
    Outage,
    /// Lost against another transaction (serialization, deadlock, lock timeout): try again.
    Conflict,
    /// The statement itself was refused: a missing table or permission, a value that does not fit.
    Statement,
}

impl ErrorKind {
    /// The kind of a sqlx error, by its SQLSTATE (PostgreSQL) or result code (SQLite), never by its
    /// text.
    #[must_use]
    pub(crate) fn of(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(error) => error.code().map_or(Self::Statement, |code| Self::of_code(&code)),
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => Self::Outage,
            _ => Self::Statement,
        }
    }

    fn of_code(code: &str) -> Self {
        if code.len() == 5 {
            return match (&code[..2], code) {
                (_, "40001" | "40P01" | "55P03") => Self::Conflict,
                // 25006: a primary that became a standby; 25P03: the idle session was ended by its
                // time limit
                ("08" | "53" | "57" | "58" | "XX", _) | (_, "25006" | "25P03") => Self::Outage,
                _ => Self::Statement,
            };
        }
        // https://www.sqlite.org/rescode.html: the primary result code is the lowest byte.
        match code.parse::<u32>().map(|code| code & 0xff) {
            Ok(5 | 6) => Self::Conflict,      // BUSY, LOCKED
            Ok(10 | 13 | 14) => Self::Outage, // IOERR, FULL, CANTOPEN
            _ => Self::Statement,
        }
    }
}

/// The database could not do something that the inbox needs. Nothing took effect.
#[derive(Debug, thiserror::Error)]
#[error("the database could not {what}")]
pub struct StoreError {
    what: String,
    error_kind: ErrorKind,
    #[source]
    source: Box<dyn Error + Send + Sync>,
}

impl StoreError {
    pub(crate) fn new(
        what: impl Into<String>,
        error_kind: ErrorKind,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self { what: what.into(), error_kind, source: source.into() }
    }

    /// Something ended in the middle, or a simulation says so: try again.
    pub fn broken(what: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(what, ErrorKind::Outage, source)
    }

    /// An adapter for `map_err`.
    pub(crate) fn during(what: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |error| Self::new(what, ErrorKind::of(&error), error)
    }

    /// Whose fault it is: the infrastructure's ([`Fault::Broker`]: wait and try again) or the
    /// operator's.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self.error_kind {
            ErrorKind::Outage | ErrorKind::Conflict => Fault::Broker,
            ErrorKind::Statement => Fault::Operator,
        }
    }

    /// Whether the same call in a new transaction can succeed without anybody doing something.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.error_kind != ErrorKind::Statement
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_tell_outage_from_conflict_from_statement() {
        for (code, error_kind) in [
            ("40001", ErrorKind::Conflict),
            ("40P01", ErrorKind::Conflict),
            ("55P03", ErrorKind::Conflict),
            ("57P01", ErrorKind::Outage),
            ("08006", ErrorKind::Outage),
            ("53300", ErrorKind::Outage),
            ("42501", ErrorKind::Statement),
            ("25P02", ErrorKind::Statement),
            ("5", ErrorKind::Conflict),
            ("517", ErrorKind::Conflict), // BUSY_SNAPSHOT
            ("13", ErrorKind::Outage),
            ("1555", ErrorKind::Statement), // CONSTRAINT_PRIMARYKEY
            ("nonsense", ErrorKind::Statement),
        ] {
            assert_eq!(ErrorKind::of_code(code), error_kind, "{code}");
        }
    }
}
