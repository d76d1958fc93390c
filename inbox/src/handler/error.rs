//! Why a handler failed, and what happens next.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use migrations::SqlErrorKind;
use outbox::{EnqueueError, Remedy, StoreError};

/// Maximum time that [`HandlerError::retry_after`] can ask for: 15 minutes. The delivery stays
/// unsettled through all its attempts, and RabbitMQ ends the session of a consumer that leaves one
/// unsettled for 30 minutes (`consumer_timeout`). For a longer wait, store a row of your own.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(900);

/// Minimum time between two attempts that [`HandlerError::not_yet`] can ask for.
const NOT_YET_MIN: Duration = Duration::from_millis(100);

/// The next step for a message whose handler failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Next {
    /// Counted, and retried after a backoff; dead-lettered after too many attempts.
    Retry,
    /// Dead-lettered at once.
    Reject,
    /// Not counted, and retried after a backoff: the handler depends on something that is
    /// unavailable.
    Unavailable,
    /// Not counted, and retried after the time that the handler chose: the message depends on
    /// something that does not exist yet.
    NotYet,
    /// The database was unavailable, or another transaction won. Retried after a backoff. Counted
    /// only while other messages succeed: then the database fails for this message alone.
    Database,
}

/// Why a handler failed, and what happens next.
#[derive(Debug)]
pub struct HandlerError {
    next: Next,
    /// Whether the runner ended the handler.
    timed_out: bool,
    /// Wait before the next attempt, instead of the backoff.
    delay: Option<Duration>,
    reason: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl HandlerError {
    /// Makes an error for a message that failed but may succeed later.
    #[must_use]
    pub fn retry(reason: impl Into<String>) -> Self {
        Self { next: Next::Retry, timed_out: false, delay: None, reason: reason.into(), source: None }
    }

    /// Makes an error for a message that failed; the next attempt waits for `delay` instead of the
    /// backoff. A delay above 15 minutes is shortened to that, because the delivery stays unsettled
    /// through all its attempts; for a longer wait, store your own row. Counted as an attempt. In a
    /// batch, the first failure only removes the message from the batch and runs it again alone at
    /// once. Only a failure of that attempt waits for `delay`.
    #[must_use]
    pub fn retry_after(delay: Duration, reason: impl Into<String>) -> Self {
        Self { delay: Some(delay.min(RETRY_AFTER_MAX)), ..Self::retry(reason) }
    }

    /// Wraps an error of a message that may succeed later: for `.map_err(HandlerError::retrying)`.
    #[must_use]
    pub fn retrying(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::retry("the handler failed").with_source(error)
    }

    /// Wraps an error that will always prevent the message from succeeding: for
    /// `.map_err(HandlerError::rejecting)`.
    #[must_use]
    pub fn rejecting(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::reject("the handler rejected the message").with_source(error)
    }

    /// Makes an error for a message that can never succeed: it is dead-lettered at once.
    #[must_use]
    pub fn reject(reason: impl Into<String>) -> Self {
        Self { next: Next::Reject, ..Self::retry(reason) }
    }

    /// Makes an error for a dependency that is unavailable. This is not the message's fault, so no
    /// attempt is counted.
    #[must_use]
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self { next: Next::Unavailable, ..Self::retry(reason) }
    }

    /// Makes an error for a message that depends on something that does not exist yet, such as the
    /// row of an earlier event: it is retried every `every`, from 100 ms to 15 minutes. No attempt
    /// is counted. Its key waits; other keys continue. It is dead-lettered once it has failed for
    /// [`failing_max`](crate::ConsumerBuilder::failing_max), and at least
    /// [`attempts_max`](crate::ConsumerBuilder::attempts_max) times in a row, in any process.
    ///
    /// The delivery stays unsettled meanwhile: it takes room in the
    /// [`prefetch`](crate::ConsumerBuilder::prefetch), and RabbitMQ ends the session of a consumer
    /// that leaves one unsettled for 30 minutes (`consumer_timeout`). Then it is redelivered and
    /// continues to wait. A quorum queue counts each of these deliveries, and RabbitMQ 4 drops one
    /// after 20 of them: give such a queue a dead-letter exchange or a higher `delivery-limit`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use inbox::HandlerError;
    ///
    /// fn known(customer: Option<i64>) -> Result<i64, HandlerError> {
    ///     customer.ok_or_else(|| HandlerError::not_yet(Duration::from_secs(30), "the customer is not there yet"))
    /// }
    /// # assert!(known(None).is_err());
    /// ```
    #[must_use]
    pub fn not_yet(every: Duration, reason: impl Into<String>) -> Self {
        Self {
            next: Next::NotYet,
            delay: Some(every.clamp(NOT_YET_MIN, RETRY_AFTER_MAX)),
            ..Self::retry(reason)
        }
    }

    /// Makes the error of a handler whose message was not enqueued.
    pub(crate) fn of_enqueue(remedy: Remedy, error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let failed = match remedy {
            Remedy::RunAgain => {
                Self { next: Next::Database, ..Self::retry("the outbox cannot store a message now") }
            }
            Remedy::GiveUp => Self::reject("a message that it enqueues can never be stored"),
            Remedy::Repair => Self::unavailable("the outbox is not set up"),
            _ => Self::retry("the outbox did not store a message"),
        };
        failed.with_source(error)
    }

    /// Makes the error of a handler whose statement failed.
    fn of_database(is_transient: bool) -> Self {
        if is_transient {
            return Self { next: Next::Database, ..Self::retry("the database failed") };
        }
        Self::retry("the database refused a statement")
    }

    /// Makes the error of a handler that ran longer than `timeout`.
    pub(crate) fn of_timeout(timeout: Duration) -> Self {
        let reason = format!(
            "the handler did not finish within {timeout:?} and was rolled back; make it faster, or raise \
             handler_timeout"
        );
        Self { timed_out: true, ..Self::retry(reason) }
    }

    /// Makes the error of a handler that ignored a failed statement, so that its transaction can
    /// only be rolled back.
    pub(crate) fn of_broken_transaction(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::retry("the handler ignored a failed statement, so its transaction was rolled back")
            .with_source(error)
    }

    /// Returns whether the handler reached its timeout.
    pub(crate) fn is_timeout(&self) -> bool {
        self.timed_out
    }

    /// Attaches the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns the next step for the message.
    #[must_use]
    pub fn next(&self) -> Next {
        self.next
    }

    /// Returns how long the next attempt waits, if [`retry_after`](Self::retry_after) or
    /// [`not_yet`](Self::not_yet) set it.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        self.delay
    }
}

impl From<serde_json::Error> for HandlerError {
    /// Rejects the message: the same bytes never parse. The text contains nothing of the payload.
    fn from(error: serde_json::Error) -> Self {
        if error.is_io() {
            return Self::retry("reading JSON failed").with_source(error);
        }
        Self::reject(format!("invalid JSON: {}", json_problem(&error)))
    }
}

/// Returns the message of a JSON error without the values that serde quotes from the payload.
pub(crate) fn json_problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!("line {} column {}", error.line(), error.column());
    if !error.is_data() || text.starts_with("missing field `") || text.starts_with("duplicate field `") {
        return text;
    }
    let expected = || text.rsplit_once(", expected ").map(|(_, expected)| expected);
    for (prefix, values) in [
        (
            "invalid type: ",
            &["string", "integer", "floating point", "boolean", "null", "map", "sequence"][..],
        ),
        ("invalid value: ", &["string", "integer", "floating point", "boolean", "map", "sequence"][..]),
    ] {
        let Some(rest) = text.strip_prefix(prefix) else { continue };
        let found = values.iter().find(|found| rest.starts_with(**found));
        if let (Some(found), Some(expected)) = (found, expected()) {
            return format!("{prefix}{found}, expected {expected}");
        }
    }
    format!("a value that does not fit the type, at {place}")
}

impl From<sqlx::Error> for HandlerError {
    /// Treats outages and lost conflicts (serialization failure, deadlock, statement timeout) as
    /// not the message's fault, unless only this message meets them: see [`Next::Database`].
    fn from(error: sqlx::Error) -> Self {
        Self::of_database(SqlErrorKind::of(&error) != SqlErrorKind::Refused).with_source(error)
    }
}

impl From<StoreError> for HandlerError {
    /// Treats it like an error of one of the handler's own statements.
    fn from(error: StoreError) -> Self {
        Self::of_database(error.is_transient()).with_source(error)
    }
}

impl From<EnqueueError> for HandlerError {
    /// Classifies by the cause. A message that can never be stored (an invalid topic, too large, an
    /// id reused) rejects the message that is being handled. An outage or a lost conflict is
    /// treated as one of the database: see [`Next::Database`]. Missing tables, or no outbox at all,
    /// are not counted: an operator repairs them. Everything else is counted and tried again.
    fn from(error: EnqueueError) -> Self {
        Self::of_enqueue(error.remedy(), error)
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for HandlerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_json_error_says_what_is_wrong_and_quotes_no_value() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Order {
            #[expect(dead_code, reason = "only its type matters")]
            cents: i64,
        }
        for (json, part) in [
            (r#"{"cents":"s3cret"}"#, "invalid type: string, expected i64 at line 1"),
            ("{}", "missing field `cents`"),
            (r#"{"s3cret":1}"#, "does not fit the type, at line 1"),
            (r#"{"cents""#, "EOF while parsing"),
        ] {
            let error = HandlerError::from(serde_json::from_str::<Order>(json).unwrap_err());
            assert_eq!(error.next(), Next::Reject);
            let text = crate::error_text::error_text(&error);
            assert!(text.contains(part) && !text.contains("s3cret"), "{text}");
        }
    }

    #[test]
    fn an_error_of_the_outbox_is_treated_by_its_cause() {
        let id = message::MessageId::new();
        let topic = message::Topic::new("orders").unwrap();
        for (error, next) in [
            (message::IdReused { id, topic, differs: Vec::new() }.into(), Next::Reject),
            (EnqueueError::Concurrent { id }, Next::Database),
            (sqlx::Error::PoolTimedOut.into(), Next::Database),
            (sqlx::Error::RowNotFound.into(), Next::Retry),
            (EnqueueError::NoOutbox, Next::Unavailable),
            (EnqueueError::Dropped, Next::Retry),
            // Swallowed, then met again by a second call.
            (
                EnqueueError::Poisoned { first: String::new(), remedy: Remedy::GiveUp, retryable: false },
                Next::Reject,
            ),
        ] {
            let text = error.to_string();
            assert_eq!(HandlerError::from(error).next(), next, "{text}");
        }
    }

    #[test]
    fn a_chosen_delay_is_bounded() {
        let error = HandlerError::retry_after(Duration::from_secs(86_400), "later");
        assert_eq!((error.next(), error.delay()), (Next::Retry, Some(RETRY_AFTER_MAX)));
    }
}
