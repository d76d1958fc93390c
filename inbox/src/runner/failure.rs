//! The consequences of a failure. Pure.
//!
//! Failures are counted while other messages succeed, and capped by age otherwise. A failure that
//! is the message's own always counts. One that could be everybody's (the database ended a
//! statement, a deadlock, a lost session) counts if another message has succeeded since this one
//! failed last: then it is not everybody's. A failure to keep a chunk never counts: no handler has
//! seen it, messages without chunks say nothing about its tables, and a chunk that is dead-lettered
//! alone cannot be redriven. Nor does one of the session alone, which the next attempt gets another
//! one for.

use std::error::Error;
use std::time::Duration;

use migrations::SqlErrorKind;

/// Whose failure it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureKind {
    /// The message's own: its handler failed, panicked or did not end in time, or a statement was
    /// refused.
    Own,
    /// The database did not do it: everybody's, or this message's alone.
    Database,
    /// The handler says that something it needs is away.
    Unavailable,
    /// The database did not keep a chunk, whose message is not whole yet.
    Chunk,
}

impl FailureKind {
    /// Whether a failure is counted against the message.
    pub(super) fn is_counted(self, others_succeeded: bool) -> bool {
        match self {
            Self::Own => true,
            Self::Database => others_succeeded,
            Self::Unavailable | Self::Chunk => false,
        }
    }
}

/// Whether a failure, or what caused it, is of its session alone: see
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

/// A failure that was noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failure {
    /// Whether it was counted.
    pub(super) is_counted: bool,
    /// How many were counted until now, this one included.
    pub(super) attempts: u32,
    /// The time since the first was noted.
    pub(super) age: Duration,
    /// How many that were not counted have been noted in a row by a database that answered.
    pub(super) uncounted: u32,
}

/// When a message is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// After so many failures that were counted.
    pub(super) attempts_max: u32,
    /// After failing for so long without one that was counted.
    pub(super) failing_max: Duration,
}

impl Limits {
    /// Whether a message is to be dead-lettered. One whose failures are not counted is given up by
    /// its age, and only after as many failures that a database which answers has noted: the end of
    /// a long outage is no reason.
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
