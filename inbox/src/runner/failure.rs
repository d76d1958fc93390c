//! Classification of failures. Pure.
//!
//! Failures are counted while other messages succeed, and limited by age otherwise. A failure that
//! is the message's own always counts. A failure that may affect every message (a statement ended
//! by the database, a deadlock, a lost session) counts only if another message has succeeded since
//! this one last failed: then it does not affect every message. A failure to keep a chunk never
//! counts. No handler has seen the chunk, messages without chunks show nothing about its tables,
//! and a chunk that is dead-lettered alone cannot be redriven. A failure of the session alone does
//! not count either, because the next attempt gets another session.

use std::error::Error;
use std::time::Duration;

use migrations::SqlErrorKind;

/// Party at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureKind {
    /// The message: its handler failed, panicked or timed out, or a statement was refused.
    Own,
    /// The database failed, for every message or for this one alone.
    Database,
    /// The handler reports that something it depends on is unavailable.
    Unavailable,
    /// The database did not store a chunk of a message that is not whole yet.
    Chunk,
}

impl FailureKind {
    /// Returns whether a handler ran to its end, so the message did not end this process.
    pub(super) fn is_of_handler(self) -> bool {
        matches!(self, Self::Own | Self::Unavailable)
    }

    /// Returns whether the failure counts against the message.
    pub(super) fn is_counted(self, others_succeeded: bool) -> bool {
        match self {
            Self::Own => true,
            Self::Database => others_succeeded,
            Self::Unavailable | Self::Chunk => false,
        }
    }
}

/// Returns whether an error, or one of its sources, concerns its session alone: see
/// [`SqlErrorKind::is_of_session`].
pub(super) fn is_of_session(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.downcast_ref().is_some_and(SqlErrorKind::is_of_session) {
            return true;
        }
        next = error.source();
    }
    false
}

/// A failure that was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failure {
    /// Whether it was counted.
    pub(super) is_counted: bool,
    /// Number of counted failures, including this one.
    pub(super) attempts: u32,
    /// Time since the first failure was recorded, by the clock that shows the shorter time.
    pub(super) age: Duration,
    /// Number of consecutive uncounted failures, in any process, as the database recorded them.
    pub(super) uncounted: u32,
}

/// Limits after which a message is dead-lettered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Maximum number of counted failures.
    pub(super) attempts_max: u32,
    /// Maximum time of failing while no failure counts.
    pub(super) failing_max: Duration,
}

impl Limits {
    /// Returns whether to dead-letter the message. A message whose failures do not count is
    /// dead-lettered by its age, and only after `attempts_max` consecutive failures that an
    /// available database has recorded. So the end of a long outage alone is not a reason.
    pub(super) fn are_exceeded_by(self, failure: Failure) -> bool {
        if failure.is_counted {
            return failure.attempts >= self.attempts_max;
        }
        failure.age >= self.failing_max && failure.uncounted >= self.attempts_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_everybodys_counts_only_while_others_succeed() {
        for (kind, others_succeeded, is_counted) in [
            (FailureKind::Own, false, true),
            (FailureKind::Own, true, true),
            (FailureKind::Database, false, false),
            (FailureKind::Database, true, true),
            (FailureKind::Unavailable, false, false),
            (FailureKind::Unavailable, true, false),
            (FailureKind::Chunk, false, false),
            (FailureKind::Chunk, true, false),
        ] {
            assert_eq!(kind.is_counted(others_succeeded), is_counted, "{kind:?} {others_succeeded}");
        }
    }

    #[test]
    fn attempts_give_a_message_up_and_age_does_where_none_counts() {
        let hour = Duration::from_secs(3_600);
        let limits = Limits { attempts_max: 10, failing_max: 24 * hour };
        for (is_counted, attempts, age, uncounted, is_dead) in [
            (true, 9, 100 * hour, 0, false),
            (true, 10, Duration::ZERO, 0, true),
            // Counted before, and not counted now: an outage in between.
            (false, 10, hour, 50, false),
            (false, 0, 23 * hour, 5_000, false),
            (false, 0, 24 * hour, 10, true),
            // The first failure after an outage of a day.
            (false, 0, 25 * hour, 1, false),
        ] {
            let failure = Failure { is_counted, attempts, age, uncounted };
            assert_eq!(limits.are_exceeded_by(failure), is_dead, "{failure:?}");
        }
    }
}
