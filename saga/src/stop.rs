//! How a saga and its steps say that they cannot go on.

use std::error::Error;
use std::fmt;

use migrations::SqlErrorKind;
use outbox::EnqueueError;

use crate::error::chain;

/// Why a saga does not go on. `Err(Stop)` from its function undoes its steps in reverse order.
///
/// A step returns one when its outcome is settled and is not a success: it was refused, its retries
/// are used up, its reply did not come in time. The outcome is stored; a function may catch it and
/// take another way. A step also returns one when the saga only pauses: every further step then
/// returns one too, and what the function makes of it is ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    reason: String,
    is_timeout: bool,
}

impl Stop {
    /// A reason of the business.
    #[must_use]
    pub fn because(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_timeout: false }
    }

    pub(crate) fn timeout(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_timeout: true }
    }

    /// The saga pauses, or is no longer this worker's.
    pub(crate) fn paused() -> Self {
        Self::because("the saga pauses here; return this error")
    }

    /// Whether a reply did not come in time.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        self.is_timeout
    }

    /// The reason.
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

/// Why a step or an undo failed, and what follows.
///
/// Every error converts into one by `?` and means: try again. One of a database that says it is
/// away is tried again without being counted, as long as the database that holds the sagas does not
/// answer either; while it does, each sixth in a row counts. One that says that another transaction
/// won is tried again at once, and 20 of them in a row count as one failure.
/// [`StepError::stop`] means that it can never succeed.
#[derive(Debug)]
pub struct StepError {
    pub(crate) next: Next,
    reason: String,
}

/// The next step after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Counted, and tried again after a pause.
    Retry,
    /// Another transaction won: tried again at once.
    Again,
    /// Not counted: the database is away.
    Outage,
    /// Never.
    Stop,
}

impl StepError {
    /// It failed, but may succeed later. Of a call, the outcome is unknown then.
    #[must_use]
    pub fn retry(reason: impl Into<String>) -> Self {
        Self { next: Next::Retry, reason: reason.into() }
    }

    /// The database that holds the sagas does not answer.
    pub(crate) fn outage(reason: impl Into<String>) -> Self {
        Self { next: Next::Outage, reason: reason.into() }
    }

    /// It did not happen, and never will: the step returns [`Stop`]. An undo that says so makes its
    /// saga stuck.
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
