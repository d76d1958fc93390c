//! Kinds of SQL errors: what an error of the database client means for its caller.

use sqlx::Error;

/// The kind of a sqlx error, decided by SQLSTATE (PostgreSQL) or result code (SQLite), never by its
/// text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SqlErrorKind {
    /// The connection is lost or the server is shutting down: the statement may have taken effect.
    /// Try again on a new connection.
    Lost,
    /// Another transaction won (serialization, deadlock, lock timeout, a busy SQLite): the same
    /// work may succeed at once in a new transaction.
    Conflict,
    /// The server is up but cannot run the statement now: too many connections, a time limit, a
    /// full disk, a standby. Wait and try again, without limit.
    Unavailable,
    /// The statement was refused because of its content, or an operator must repair something: a
    /// missing table or permission, a value that does not fit.
    Refused,
}

impl SqlErrorKind {
    /// Classifies an error.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        match error {
            Error::Io(_)
            | Error::Protocol(_)
            | Error::WorkerCrashed
            | Error::PoolClosed
            | Error::BeginFailed => Self::Lost,
            Error::PoolTimedOut | Error::Tls(_) => Self::Unavailable,
            Error::Database(_) if Self::is_of_session(error) => Self::Unavailable,
            Error::Database(error) => error.code().map_or(Self::Refused, |code| Self::of_code(&code)),
            _ => Self::Refused,
        }
    }

    /// Whether an error concerns the session alone, so that another session could run the same
    /// statement. The session's server became read-only, [its prepared statements were
    /// lost](Self::is_of_pooler), or a table changed under a prepared statement. The statement
    /// itself is correct.
    #[must_use]
    pub fn is_of_session(error: &Error) -> bool {
        let Error::Database(answer) = error else { return false };
        match answer.code().as_deref() {
            Some("25006") => true,
            // feature_not_supported has many causes; the routine's name does not depend on the
            // language.
            Some("0A000") => is_of_stale_plan(&**answer),
            _ => Self::is_of_pooler(error),
        }
    }

    /// Whether the session's prepared statements are not those of this client: a pooler shares
    /// sessions between clients and does not keep their statements apart.
    #[must_use]
    pub fn is_of_pooler(error: &Error) -> bool {
        let Error::Database(answer) = error else { return false };
        // invalid_sql_statement_name, duplicate_prepared_statement
        matches!(answer.code().as_deref(), Some("26000" | "42P05"))
    }

    /// Returns whether the database refused a statement because its user lacks a right
    /// (insufficient_privilege). SQLite has no rights.
    #[must_use]
    pub fn is_denied(error: &Error) -> bool {
        let Error::Database(answer) = error else { return false };
        answer.code().is_some_and(|code| code == "42501")
    }

    /// Returns whether an error that answered COMMIT proves a rollback: a violated constraint, an
    /// error raised by a deferred trigger, a lost conflict, an aborted transaction. After any other
    /// error the outcome is unknown. A pooler or proxy that loses its server during the commit
    /// answers with its own error, whose code is often one of the classes 08, 57, 58 and XX.
    #[must_use]
    pub fn says_rolled_back(error: &Error) -> bool {
        let Error::Database(answer) = error else { return false };
        answer.code().is_some_and(|code| Self::code_says_rolled_back(&code))
    }

    fn code_says_rolled_back(code: &str) -> bool {
        if Self::of_code(code) == Self::Lost {
            return false;
        }
        match code.parse::<u32>() {
            // BUSY, LOCKED, CONSTRAINT
            Ok(number) if code.len() < SQLSTATE_LEN => matches!(number & 0xff, 5 | 6 | 19),
            // data exceptions, integrity violations, transaction states, rollbacks, PL/pgSQL
            _ => matches!(code.get(..2), Some("22" | "23" | "25" | "40" | "P0")),
        }
    }

    /// Classifies a code: five characters are a SQLSTATE, a number is a result code of SQLite.
    fn of_code(code: &str) -> Self {
        match code.parse::<u32>() {
            // https://www.sqlite.org/rescode.html; extended codes keep the primary one in the low
            // byte, and have fewer than five digits.
            Ok(number) if code.len() < SQLSTATE_LEN => Self::of_result_code(number & 0xff),
            _ => Self::of_sqlstate(code),
        }
    }

    fn of_result_code(primary: u32) -> Self {
        match primary {
            // BUSY, LOCKED; PROTOCOL, which is a lost race for the locks of the write-ahead log
            5 | 6 | 15 => Self::Conflict,
            10 => Self::Lost,        // IOERR
            13 => Self::Unavailable, // FULL
            // including CANTOPEN, most often a wrong path
            _ => Self::Refused,
        }
    }

    /// <https://www.postgresql.org/docs/current/errcodes-appendix.html>
    fn of_sqlstate(code: &str) -> Self {
        match (code.get(..2).unwrap_or_default(), code) {
            // serialization_failure, deadlock_detected; lock_not_available
            (_, "40001" | "40P01" | "55P03") => Self::Conflict,
            // statement_completion_unknown; idle_in_transaction_session_timeout and
            // transaction_timeout, which end the session; admin_shutdown,
            // crash_shutdown, cannot_connect_now, database_dropped, idle_session_timeout
            (_, "40003" | "25P03" | "25P04" | "57P01" | "57P02" | "57P03" | "57P04" | "57P05") => Self::Lost,
            // configuration_limit_exceeded, mostly temp_file_limit, which this statement exceeds;
            // undefined_file, a library that is not installed
            (_, "53400" | "58P01") => Self::Refused,
            // connection exceptions; system errors, mostly of I/O
            ("08" | "58", _) => Self::Lost,
            // read_only_sql_transaction: a primary that became a standby
            (_, "25006") => Self::Unavailable,
            // insufficient resources; operator intervention, with query_canceled; internal errors
            ("53" | "57" | "XX", _) => Self::Unavailable,
            _ => Self::Refused,
        }
    }
}

/// Recognises "cached plan must not change result type".
#[cfg(feature = "postgres")]
fn is_of_stale_plan(answer: &(dyn sqlx::error::DatabaseError + 'static)) -> bool {
    let answer = answer.try_downcast_ref::<sqlx::postgres::PgDatabaseError>();
    answer.and_then(|answer| answer.routine()) == Some("RevalidateCachedQuery")
}

#[cfg(not(feature = "postgres"))]
fn is_of_stale_plan(_: &(dyn sqlx::error::DatabaseError + 'static)) -> bool {
    false
}

/// The length of a SQLSTATE in ISO/IEC 9075.
const SQLSTATE_LEN: usize = 5;

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::error::Error as StdError;
    use std::fmt;

    use sqlx::error::{DatabaseError, ErrorKind};

    use super::*;

    /// A server's answer with this code.
    #[derive(Debug)]
    struct Answer(&'static str);

    impl fmt::Display for Answer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl StdError for Answer {}

    impl DatabaseError for Answer {
        fn message(&self) -> &str {
            self.0
        }

        fn code(&self) -> Option<Cow<'_, str>> {
            Some(self.0.into())
        }

        fn as_error(&self) -> &(dyn StdError + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn StdError + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn StdError + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> ErrorKind {
            ErrorKind::Other
        }
    }

    #[test]
    fn an_error_of_the_session_is_waited_out() {
        for (code, is_of_session, is_of_pooler, kind) in [
            ("25006", true, false, SqlErrorKind::Unavailable),
            ("26000", true, true, SqlErrorKind::Unavailable),
            ("42P05", true, true, SqlErrorKind::Unavailable),
            ("0A000", false, false, SqlErrorKind::Refused),
            ("42P01", false, false, SqlErrorKind::Refused),
        ] {
            let error = Error::Database(Box::new(Answer(code)));
            assert_eq!(SqlErrorKind::is_of_session(&error), is_of_session, "{code}");
            assert_eq!(SqlErrorKind::is_of_pooler(&error), is_of_pooler, "{code}");
            assert_eq!(SqlErrorKind::of(&error), kind, "{code}");
        }
    }

    #[test]
    fn a_missing_right_is_told_apart_from_other_refusals() {
        for (code, is_denied) in [("42501", true), ("42P01", false), ("28000", false), ("23", false)] {
            let error = Error::Database(Box::new(Answer(code)));
            assert_eq!(SqlErrorKind::is_denied(&error), is_denied, "{code}");
        }
        assert!(!SqlErrorKind::is_denied(&Error::PoolTimedOut));
    }

    #[test]
    fn errors_without_a_code_have_a_kind() {
        for (error, kind) in [
            (Error::Io(std::io::ErrorKind::BrokenPipe.into()), SqlErrorKind::Lost),
            (Error::BeginFailed, SqlErrorKind::Lost),
            (Error::PoolTimedOut, SqlErrorKind::Unavailable),
            (Error::Tls("expired".into()), SqlErrorKind::Unavailable),
            (Error::RowNotFound, SqlErrorKind::Refused),
        ] {
            assert_eq!(SqlErrorKind::of(&error), kind, "{error}");
        }
    }

    #[test]
    fn only_a_refusal_says_that_nothing_was_committed() {
        for (code, says_rolled_back) in [
            ("22012", true),
            ("23505", true),
            ("25P02", true),
            ("40001", true),
            ("P0001", true),
            // The session ended, perhaps right after the commit.
            ("25P04", false),
            ("40003", false),
            ("57P01", false),
            ("08006", false),
            // Nothing in the server commits with them, but poolers use any code.
            ("42501", false),
            ("53100", false),
            ("57014", false),
            ("58000", false),
            ("XX000", false),
            ("", false),
            ("5", true),
            ("787", true), // CONSTRAINT_FOREIGNKEY
            ("10", false), // IOERR
            ("13", false), // FULL
        ] {
            let error = Error::Database(Box::new(Answer(code)));
            assert_eq!(SqlErrorKind::says_rolled_back(&error), says_rolled_back, "{code}");
        }
        assert!(!SqlErrorKind::says_rolled_back(&Error::WorkerCrashed));
    }

    #[test]
    fn every_code_of_the_table_has_its_kind() {
        for (kind, codes) in [
            (SqlErrorKind::Conflict, &["40001", "40P01", "55P03", "5", "6", "15", "517"][..]),
            (SqlErrorKind::Lost, &["08006", "58030", "57P01", "57P02", "57P03", "57P04", "57P05"]),
            (SqlErrorKind::Lost, &["25P03", "25P04", "40003", "10", "8458"]),
            (SqlErrorKind::Unavailable, &["53300", "53100", "57014", "57000", "25006", "XX000"]),
            (SqlErrorKind::Unavailable, &["13"]),
            (SqlErrorKind::Refused, &["23505", "42501", "42P01", "25P02", "22001", "40000"]),
            (SqlErrorKind::Refused, &["53400", "58P01"]),
            (SqlErrorKind::Refused, &["1", "14", "1555", "19", "nonsense", ""]),
        ] {
            for code in codes {
                assert_eq!(SqlErrorKind::of_code(code), kind, "{code}");
            }
        }
    }
}
