//! The meaning of a failed commit: nothing was committed, or the outcome is unknown. Idempotency
//! keys use it too.

use migrations::SqlErrorKind;
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

/// Interprets a failed COMMIT. Unless its error [proves a
/// rollback](SqlErrorKind::says_rolled_back), the outcome is unknown.
#[must_use]
pub fn classify_commit(error: sqlx::Error) -> CommitError {
    let is_refused = SqlErrorKind::says_rolled_back(&error);
    let source = Box::new(error);
    if is_refused {
        let reason = "the database refused at the commit";
        return CommitError::RolledBack { reason, source: Some(source) };
    }
    CommitError::Unknown { source }
}
