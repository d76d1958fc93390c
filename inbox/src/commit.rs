//! The meaning of a failed commit: nothing was committed, or the outcome is unknown. Idempotency
//! keys use it too.

use migrations::own_transaction::ENDED;

use crate::error::CommitError;

/// The reason for a rollback that is caused by a message that could not be enqueued.
pub const UNSEALED: &str = "a message could not be enqueued in it";

/// Explains why a transaction with messages was not committed, though it is known that it was not.
#[must_use]
pub fn unsealed(error: outbox::CommitError) -> CommitError {
    let reason = match &error {
        outbox::CommitError::Poisoned { .. } | outbox::CommitError::Staged(_) => UNSEALED,
        outbox::CommitError::Ended => ENDED,
        _ => "the database refused, or an earlier statement has aborted it",
    };
    CommitError::RolledBack { reason, source: Some(Box::new(error)) }
}

/// Interprets a failed COMMIT. Only an error for a violated constraint or a lost conflict proves
/// that nothing was committed. After any other error (connection lost, server shutting down) it is
/// unknown.
#[must_use]
pub fn classify_commit(error: sqlx::Error) -> CommitError {
    let refused = match &error {
        sqlx::Error::Database(answer) => answer.code().is_some_and(|code| says_rolled_back(&code)),
        _ => false,
    };
    let source = Box::new(error);
    if refused {
        let reason = "the database refused at the commit";
        return CommitError::RolledBack { reason, source: Some(source) };
    }
    CommitError::Unknown { source }
}

/// Returns whether an error code proves a rollback. SQLSTATE: integrity violations (deferred
/// constraints), lost conflicts except 40003 (completion unknown), errors raised by deferred
/// triggers, an aborted transaction. SQLite result code: BUSY and constraints.
fn says_rolled_back(code: &str) -> bool {
    if code.len() == 5 {
        return code != "40003" && ["22", "23", "25", "40", "P0"].contains(&&code[..2]);
    }
    matches!(code.parse::<u32>().map(|code| code & 0xff), Ok(5 | 6 | 19))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_says_that_nothing_was_committed() {
        for (code, rolled_back) in [
            ("23505", true),
            ("40001", true),
            ("P0001", true),
            ("25P02", true),
            ("40003", false),
            ("57P01", false),
            ("08006", false),
            ("XX000", false),
            ("5", true),
            ("787", true), // CONSTRAINT_FOREIGNKEY
            ("10", false), // IOERR
        ] {
            assert_eq!(says_rolled_back(code), rolled_back, "{code}");
        }
        assert!(!classify_commit(sqlx::Error::WorkerCrashed).is_rolled_back());
    }
}
