//! Failures of messages, and what is in hand, as the database remembers them.

use std::time::Duration;

use message::Backoff;
use time::OffsetDateTime;
use uuid::Uuid;

/// The failures of a message so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Number of counted failures; 0 when no failure was shown to be the message's own.
    pub attempts: u32,
    /// The last error.
    pub last_error: String,
    /// When it first failed.
    pub first_failed_at: OffsetDateTime,
    /// When the next attempt is due.
    pub next_at: OffsetDateTime,
}

/// A failure of a message.
#[derive(Debug, Clone, Copy)]
pub struct Failed<'a> {
    /// The error, not empty and of a length that is stored.
    pub error: &'a str,
    /// The wait after it; it is counted if there is one.
    pub pause: Option<Pause>,
    /// Whether the handler returned it, so the message did not end this process.
    pub is_returned: bool,
}

/// A failure that was recorded, as the database remembers it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NotedFailure {
    /// Number of counted failures.
    pub(crate) attempts: u32,
    /// Number of consecutive failures that were not counted.
    pub(crate) uncounted: u32,
    /// When the first failure was recorded, counted or not.
    pub(crate) first_failed_at: OffsetDateTime,
    /// Time since then, by the database's clock.
    pub(crate) age: Duration,
}

impl NotedFailure {
    /// Returns the time since the first failure, by the database's clock or another one: the
    /// shorter time. Giving up cannot be taken back, so no clock decides alone.
    pub(super) fn age_by_both(&self, now: OffsetDateTime) -> Duration {
        self.age.min(Duration::try_from(now - self.first_failed_at).unwrap_or_default())
    }
}

/// A message that a process is working on ("in hand"), as the database remembers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InHand {
    /// Number of counted failures.
    pub failures: u32,
    /// Number of other processes that ended while they had it in hand.
    pub ends: u32,
    /// Another process that has it in hand, or had it when it ended; `None` when the asking process
    /// has it in hand.
    pub owner: Option<Uuid>,
    /// When the next attempt is due.
    pub next_at: OffsetDateTime,
}

/// The messages whose attempts are forgotten. The others are only released: they are no longer in
/// hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Forget {
    /// All messages.
    All,
    /// Messages without a recorded failure.
    Unnoted,
    /// Messages without a counted failure, whose handler ended no process.
    Unsuspected,
    /// Messages without a recorded failure, whose handler ended no process.
    Untouched,
}

impl Forget {
    /// Returns whether counted failures are forgotten.
    pub(crate) fn also_counted(self) -> bool {
        self == Self::All
    }

    /// Returns whether failures are forgotten that were recorded and not counted.
    pub(crate) fn also_noted(self) -> bool {
        !matches!(self, Self::Unnoted | Self::Untouched)
    }

    /// Returns whether the ends of processes are forgotten.
    pub(crate) fn also_ends(self) -> bool {
        !matches!(self, Self::Unsuspected | Self::Untouched)
    }
}

/// Number of processes that may end with a message in hand before it is dead-lettered.
const ENDS_MAX: u32 = 5;

impl InHand {
    /// Returns why the message is dead-lettered, once [`ENDS_MAX`] processes ended with it in hand.
    pub(crate) fn given_up(&self) -> Option<String> {
        let ends = self.ends;
        (ends >= ENDS_MAX).then(|| {
            format!(
                "{ends} processes ended while they handled this message, the last ones while they handled \
                 nothing else: its handler probably kills the process (an abort, a stack overflow, out of \
                 memory)"
            )
        })
    }
}

/// The failures of a message so far, as
/// [`Inbox::record_failure`](crate::Inbox::record_failure) counted them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failures {
    /// Number of counted failures.
    pub attempts: u32,
    /// Number of consecutive failures that were not counted. It restarts after an hour without one.
    pub uncounted: u32,
    /// Time since the first failure was recorded, counted or not, by the clocks of database and
    /// process: the shorter time.
    pub age: Duration,
    /// Wait until the next attempt; zero for a failure that is not counted.
    pub delay: Duration,
}

/// Wait after a counted failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// Grows with the number of failures, with jitter.
    Backoff(Backoff),
    /// The time that the handler asked for.
    Exactly(Duration),
}

impl Pause {
    /// Returns the wait after this number of failures; `uniform` is the jitter, as for
    /// [`Backoff::delay`].
    #[must_use]
    pub fn delay(self, failures: u32, uniform: f64) -> Duration {
        match self {
            Self::Backoff(backoff) => backoff.delay(failures, uniform),
            Self::Exactly(delay) => delay,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_clock_alone_makes_a_failure_old() {
        let first_failed_at = OffsetDateTime::UNIX_EPOCH;
        let (hour, day) = (Duration::from_secs(3_600), Duration::from_secs(86_400));
        for (database, process, age) in
            [(hour, hour, hour), (3 * day, hour, hour), (hour, 3 * day, hour), (3 * day, 2 * day, 2 * day)]
        {
            let noted = NotedFailure { attempts: 0, uncounted: 1, first_failed_at, age: database };
            assert_eq!(noted.age_by_both(first_failed_at + process), age, "{database:?} {process:?}");
        }
        let behind = NotedFailure { attempts: 0, uncounted: 1, first_failed_at, age: day };
        assert_eq!(behind.age_by_both(first_failed_at - hour), Duration::ZERO);
    }
}
