//! Reasons why an operation failed.

use message::token::{Drift, MintError, ScheduledTooFar};
use message::{IdReused, InvalidMessage, MessageId, Oversize};

/// Why an operation failed. Roll the transaction back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error<D> {
    /// The operation was refused, by a rule of the toolkit. PostgreSQL will refuse to commit the
    /// transaction.
    #[error(transparent)]
    Refused(Box<Refused>),
    /// The database refused a statement or became unavailable: the driver's error says why. If its
    /// SQLSTATE [passes], run the transaction again.
    #[error("the database refused a statement of the toolkit, or became unavailable")]
    Database(#[source] D),
    /// The connection is in no transaction: what an operation stores would be committed at once,
    /// without the business rows. The program is at fault. Nothing was sent to the database.
    #[error("the connection is in no transaction: begin one, and run the operation in it")]
    NoTransaction,
    /// The connection is in a transaction already: the message would count as handled before that
    /// transaction commits, and be lost if it rolls back. The program is at fault. Nothing was sent
    /// to the database.
    #[error("the connection is in a transaction already: handle the message outside of it")]
    OpenTransaction,
    /// A statement was not sent, or its answer was not passed on. The driver's part is at fault.
    #[error("a statement of the operation was not sent, or its answer was not passed on")]
    Unfinished,
}

/// An operation that a rule of the toolkit refuses. Nothing was stored. Running it again does not
/// help, except after [`NoId`](Self::NoId).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The message breaks a rule.
    #[error(transparent)]
    Invalid(#[from] InvalidMessage),
    /// The message is larger than its destination accepts.
    #[error(transparent)]
    Oversize(Box<Oversize>),
    /// The supplied id is older, or further ahead of the database's clock, than the outbox accepts
    /// ([`Outbox::ids_accepted`](crate::Outbox::ids_accepted)). Consumers would refuse it.
    #[error(transparent)]
    Drift(Box<Drift>),
    /// At delivery the message's id would be older than consumers accept
    /// ([`Outbox::ids_accepted`](crate::Outbox::ids_accepted)).
    #[error(transparent)]
    ScheduledTooFar(#[from] ScheduledTooFar),
    /// No id could be made for the message ([`Outbox::ids`](crate::Outbox::ids)).
    #[error(transparent)]
    NoId(#[from] MintError),
    /// The id was enqueued before for another message.
    #[error(transparent)]
    IdReused(#[from] IdReused),
    /// The transaction does not contain the row any more: it has ended, is another one, or was
    /// rolled back to a savepoint before the row. The rest would be committed without it.
    #[error(
        "this transaction does not contain the row of {id}: it has ended, is another one, or was rolled \
         back to a savepoint before it"
    )]
    Ended {
        /// The message.
        id: MessageId,
    },
    /// The retention of an inbox is out of bounds.
    #[error("the inbox remembers ids for {days} days; choose {min} to {max}")]
    Retention {
        /// The value.
        days: u16,
        /// The smallest accepted value.
        min: u16,
        /// The largest accepted value.
        max: u16,
    },
    /// The database's answer has another form: its schema has another version.
    #[error(
        "the answer of the database cannot be read: {problem}; compare its version with `relay migrate status`"
    )]
    Answer {
        /// The problem with it.
        problem: String,
    },
}

impl From<Oversize> for Refused {
    fn from(oversize: Oversize) -> Self {
        Self::Oversize(Box::new(oversize))
    }
}

impl<D: std::error::Error> From<D> for Error<D> {
    /// For work in a transaction that returns this error: `?` converts the errors of its own
    /// statements.
    fn from(error: D) -> Self {
        Self::Database(error)
    }
}

/// Returns whether an error with this SQLSTATE says nothing about the message or the statement: it
/// lost a conflict, or the database was unavailable, full or out of memory, or ended it at a limit
/// of time. Count no failure, and try again. The classes are those of the library.
///
/// <https://www.postgresql.org/docs/current/errcodes-appendix.html>
#[must_use]
pub fn passes(sqlstate: &str) -> bool {
    match sqlstate {
        // configuration_limit_exceeded, mostly temp_file_limit, which the statement exceeds;
        // undefined_file, a library that is not installed
        "53400" | "58P01" => false,
        // serialization_failure, statement_completion_unknown, deadlock_detected;
        // lock_not_available; timeouts that end the session; a primary that became a standby
        "40001" | "40003" | "40P01" | "55P03" | "25P03" | "25P04" | "25006" => true,
        // connections; resources; operators, with query_canceled; the system, mostly I/O; internal
        _ => matches!(sqlstate.get(..2), Some("08" | "53" | "57" | "58" | "XX")),
    }
}

#[cfg(test)]
mod tests {
    use super::passes;

    #[test]
    fn only_what_says_nothing_about_the_statement_passes() {
        for state in
            ["40001", "40P01", "55P03", "57014", "57P01", "53100", "53300", "58030", "25006", "08006"]
        {
            assert!(passes(state), "{state}");
        }
        for state in
            ["", "5", "22012", "23505", "25P02", "40002", "42501", "53400", "58P01", "P0001", "\u{e9}8"]
        {
            assert!(!passes(state), "{state}");
        }
    }
}
