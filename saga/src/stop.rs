//! The errors with which a saga and its steps stop.

use std::error::Error;
use std::fmt;

use migrations::SqlErrorKind;
use outbox::EnqueueError;

use crate::error::chain;

/// The reason why a saga stops. `Err(Stop)` from its function undoes its steps in reverse order.
///
/// A step returns a `Stop` when its outcome is final and not a success: it was refused, its retries
/// are used up, or its reply did not arrive in time. The outcome is stored; a function may handle
/// it and take another path. A step also returns a `Stop` when the saga only pauses. Then every
/// further step also returns one, and the result of the function is ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    reason: String,
    is_timeout: bool,
}

impl Stop {
    /// Creates a stop for a business reason.
    #[must_use]
    pub fn because(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_timeout: false }
    }

    pub(crate) fn timeout(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_timeout: true }
    }

    /// Creates the stop of a saga that pauses or no longer belongs to this worker.
    pub(crate) fn paused() -> Self {
        Self::because("the saga pauses here; return this error")
    }

    /// Returns whether a reply did not arrive in time.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        self.is_timeout
    }

    /// Returns the reason.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for Stop {}

/// The failure of a step or of an undo, with its consequence.
///
/// Every error converts into one by `?`, and then means a retry. A database error that reports an
/// outage is retried without being counted, as long as the sagas' database does not answer either.
/// While that database answers, every sixth consecutive error of this kind counts. An error that
/// reports a conflict with another transaction is retried at once, and 20 consecutive conflicts
/// count as one failure. [`StepError::stop`] means that the step can never succeed.
#[derive(Debug)]
pub struct StepError {
    pub(crate) next: Next,
    reason: String,
}

/// The next step after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Counted, and retried after a pause.
    Retry,
    /// Another transaction won: retried at once.
    Again,
    /// Not counted: the database is unavailable.
    Outage,
    /// Not retried.
    Stop,
}

impl StepError {
    /// Creates an error for a failure that may be temporary. After it, the outcome of a call is
    /// unknown.
    #[must_use]
    pub fn retry(reason: impl Into<String>) -> Self {
        Self { next: Next::Retry, reason: reason.into() }
    }

    /// Creates an error for an outage of the database that holds the sagas.
    pub(crate) fn outage(reason: impl Into<String>) -> Self {
        Self { next: Next::Outage, reason: reason.into() }
    }

    /// Creates an error for a step that did not happen and never will: the step returns [`Stop`].
    /// An undo that fails with it makes its saga stuck.
    #[must_use]
    pub fn stop(reason: impl Into<String>) -> Self {
        Self { next: Next::Stop, reason: reason.into() }
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for StepError {
    fn from(error: E) -> Self {
        Self { next: next_after(&error), reason: chain(&error) }
    }
}

fn next_after(error: &(dyn Error + 'static)) -> Next {
    let mut sources = std::iter::successors(Some(error), |error| (*error).source());
    sources
        .find_map(|error| {
            if let Some(error) = error.downcast_ref::<sqlx::Error>() {
                return Some(match SqlErrorKind::of(error) {
                    SqlErrorKind::Conflict => Next::Again,
                    SqlErrorKind::Lost | SqlErrorKind::Unavailable => Next::Outage,
                    SqlErrorKind::Refused => Next::Retry,
                });
            }
            let error = error.downcast_ref::<EnqueueError>()?;
            error.is_retryable().then_some(Next::Again)
        })
        .unwrap_or(Next::Retry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_database_are_told_apart_from_those_of_the_step() {
        let lost = sqlx::Error::Io(std::io::ErrorKind::BrokenPipe.into());
        assert_eq!(StepError::from(lost).next, Next::Outage);
        assert_eq!(StepError::from(sqlx::Error::RowNotFound).next, Next::Retry);
        assert_eq!(StepError::from(std::io::Error::other("bank is away")).next, Next::Retry);
        let concurrent = EnqueueError::Concurrent { id: message::MessageId::new() };
        assert_eq!(StepError::from(concurrent).next, Next::Again);
        assert_eq!(StepError::stop("no such account").next, Next::Stop);
    }
}
