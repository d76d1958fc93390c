//! The errors with which a saga and its steps stop.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use inbox::HandlerError;
use migrations::SqlErrorKind;
use outbox::{CommitError, EnqueueError, Remedy, Rollback};

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
/// [`StepError::stop`] means that the step can never succeed. Every error converts into a
/// `StepError` by `?`. It, or the first of its sources that is one of these, decides what follows;
/// any other error means a retry.
///
/// | error | consequence |
/// |---|---|
/// | [`Stop`], [`Rollback::Because`](outbox::Rollback::Because), [`HandlerError::reject`](inbox::HandlerError::reject) | the step can never succeed; as a mere source of the error of a call, its outcome is unknown |
/// | a database error that reports an outage, [`HandlerError::unavailable`](inbox::HandlerError::unavailable) | not counted, as long as the sagas' database does not answer either; while that database answers, every sixth consecutive error of this kind counts |
/// | a conflict with another transaction | retried at once; 20 consecutive conflicts count as one failure |
/// | [`HandlerError::retry`](inbox::HandlerError::retry), [`retry_after`](inbox::HandlerError::retry_after), [`not_yet`](inbox::HandlerError::not_yet) | counted, and retried; after its time if it has one |
#[derive(Debug)]
pub struct StepError {
    pub(crate) next: Next,
    /// Wait before the next attempt, instead of the backoff.
    pub(crate) delay: Option<Duration>,
    /// Whether the error itself decided, and not one of its sources.
    pub(crate) is_direct: bool,
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
        Self { next: Next::Retry, delay: None, is_direct: true, reason: reason.into() }
    }

    /// Sets the wait before the next attempt, instead of the backoff.
    pub(crate) fn after(self, delay: Option<Duration>) -> Self {
        Self { delay, ..self }
    }

    /// Creates an error for an outage of the database that holds the sagas.
    pub(crate) fn outage(reason: impl Into<String>) -> Self {
        Self { next: Next::Outage, ..Self::retry(reason) }
    }

    /// Creates an error for a step that did not happen and never will: the step returns [`Stop`].
    /// An undo that fails with it makes its saga stuck.
    #[must_use]
    pub fn stop(reason: impl Into<String>) -> Self {
        Self { next: Next::Stop, ..Self::retry(reason) }
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for StepError {
    fn from(error: E) -> Self {
        let own = own_verdict(&error);
        let is_direct = own.is_some();
        let decided = own.or_else(|| error.source().and_then(verdict));
        let Verdict { next, delay } = decided.unwrap_or(Verdict::of(Next::Retry));
        Self { next, delay, is_direct, reason: chain(&error) }
    }
}

/// The consequence of an error for its step.
struct Verdict {
    next: Next,
    delay: Option<Duration>,
}

impl Verdict {
    fn of(next: Next) -> Self {
        Self { next, delay: None }
    }
}

/// Returns the verdict of an error, or of the first of its sources that has one.
fn verdict(error: &(dyn Error + 'static)) -> Option<Verdict> {
    own_verdict(error).or_else(|| error.source().and_then(verdict))
}

fn own_verdict(error: &(dyn Error + 'static)) -> Option<Verdict> {
    if error.is::<Stop>() || matches!(error.downcast_ref(), Some(Rollback::Because(_))) {
        return Some(Verdict::of(Next::Stop));
    }
    if let Some(error) = error.downcast_ref::<HandlerError>() {
        return Some(verdict_of_handler(error));
    }
    if let Some(error) = error.downcast_ref::<sqlx::Error>() {
        return Some(Verdict::of(match SqlErrorKind::of(error) {
            SqlErrorKind::Conflict => Next::Again,
            SqlErrorKind::Lost | SqlErrorKind::Unavailable => Next::Outage,
            SqlErrorKind::Refused => Next::Retry,
        }));
    }
    match (error.downcast_ref::<CommitError>(), error.downcast_ref::<EnqueueError>()) {
        (Some(error), _) if error.is_retryable() => Some(Verdict::of(Next::Again)),
        (_, Some(error)) if error.is_retryable() => Some(Verdict::of(Next::Again)),
        // An outage that the step swallowed: there is no other trace of it.
        (Some(CommitError::Poisoned { remedy: Remedy::RunAgain, .. }), _)
        | (_, Some(EnqueueError::Poisoned { remedy: Remedy::RunAgain, .. })) => {
            Some(Verdict::of(Next::Outage))
        }
        _ => None,
    }
}

fn verdict_of_handler(error: &HandlerError) -> Verdict {
    let next = match error.next() {
        inbox::Next::Reject => Next::Stop,
        inbox::Next::Unavailable => Next::Outage,
        // The source distinguishes an outage from a conflict.
        inbox::Next::Database => {
            return error.source().and_then(verdict).unwrap_or(Verdict::of(Next::Outage));
        }
        // A step that waits counts, so that an operator eventually learns of it.
        _ => Next::Retry,
    };
    Verdict { next, delay: error.delay() }
}

#[cfg(test)]
mod tests {
    use outbox::TransactionError;

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

    #[test]
    fn a_refusal_of_a_shared_helper_is_a_refusal() {
        assert_eq!(StepError::from(Stop::because("sold out")).next, Next::Stop);
        assert_eq!(StepError::from(Rollback::because("sold out")).next, Next::Stop);
        let refused = StepError::from(HandlerError::reject("sold out"));
        assert_eq!((refused.next, refused.to_string().as_str()), (Next::Stop, "sold out"));
        let of_work = TransactionError::Work(Rollback::because("sold out"));
        let of_work = StepError::from(of_work);
        assert_eq!((of_work.next, of_work.is_direct), (Next::Stop, false), "a transaction elsewhere");
        assert!(refused.is_direct);
        let wrapped = HandlerError::rejecting(sqlx::Error::PoolTimedOut);
        assert_eq!(StepError::from(wrapped).next, Next::Stop, "the helper decides");
    }

    #[test]
    fn an_error_of_a_handler_means_what_it_says() {
        let minute = Duration::from_secs(60);
        let lost = || sqlx::Error::Io(std::io::ErrorKind::BrokenPipe.into());
        let concurrent = EnqueueError::Concurrent { id: message::MessageId::new() };
        for (error, next, delay) in [
            (HandlerError::retry("away"), Next::Retry, None),
            (HandlerError::retrying(Stop::because("sold out")), Next::Retry, None),
            (HandlerError::retry_after(minute, "away"), Next::Retry, Some(minute)),
            (HandlerError::not_yet(minute, "not there"), Next::Retry, Some(minute)),
            (HandlerError::unavailable("away"), Next::Outage, None),
            (HandlerError::from(lost()), Next::Outage, None),
            (HandlerError::from(sqlx::Error::RowNotFound), Next::Retry, None),
            (HandlerError::from(concurrent), Next::Again, None),
            (HandlerError::from(swallowed(Remedy::RunAgain, false)), Next::Outage, None),
        ] {
            let text = error.to_string();
            let error = StepError::from(error);
            assert_eq!((error.next, error.delay), (next, delay), "{text}");
        }
    }

    #[test]
    fn what_was_swallowed_keeps_its_meaning() {
        for (retryable, next) in [(true, Next::Again), (false, Next::Outage)] {
            let EnqueueError::Poisoned { first, remedy, .. } = swallowed(Remedy::RunAgain, retryable) else {
                unreachable!()
            };
            let refused = CommitError::Poisoned { first, remedy, retryable };
            assert_eq!(StepError::from(refused).next, next);
            assert_eq!(StepError::from(swallowed(Remedy::RunAgain, retryable)).next, next);
        }
    }

    fn swallowed(remedy: Remedy, retryable: bool) -> EnqueueError {
        EnqueueError::Poisoned { first: String::from("deadlock"), remedy, retryable }
    }
}
