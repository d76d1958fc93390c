//! The second clock that must agree before a record is deleted for good.
//!
//! A database's clock that jumps ahead once (a machine restored from an image, a wrong time server,
//! a promoted standby) makes everything look old. Records deleted by that reading alone are still
//! gone when the clock is corrected, and their messages take effect a second time. So two clocks
//! must agree that the time has come: the database's, and this one of the process.
//!
//! Both may belong to one machine, as with SQLite. Therefore this clock does not follow a jump
//! ahead at once. Between two readings it advances by the time that has passed on the monotonic
//! clock, which cannot be set. It accepts a jump after it has lasted for [`BELIEVED_AFTER`]. It
//! follows a step back at once: forgetting later than necessary does no harm.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use time::OffsetDateTime;

/// How far the time of day may run ahead of the monotonic clock between two readings. It allows for
/// corrections by a time server, and for a machine that was briefly suspended.
const TOLERANCE: Duration = Duration::from_secs(60);
/// How long a jump ahead must last before it is accepted.
const BELIEVED_AFTER: Duration = Duration::from_hours(24);

/// A process's clock that does not follow a jump ahead at once. Make one when the process begins to
/// use its database, and keep it.
#[derive(Debug)]
pub struct SteadyClock(Mutex<Anchor>);

/// The last reading.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    time: OffsetDateTime,
    at: Instant,
    /// When the time of day was first seen too far ahead.
    ahead_since: Option<Instant>,
}

impl SteadyClock {
    /// Starts with the time of day.
    #[must_use]
    pub fn start() -> Self {
        Self::started(OffsetDateTime::now_utc(), Instant::now())
    }

    /// Returns the time up to which records may be forgotten, provided the database's clock has
    /// reached it too. It may lie behind the time of day, never ahead of it.
    #[must_use]
    pub fn now(&self) -> OffsetDateTime {
        self.read(OffsetDateTime::now_utc(), Instant::now())
    }

    fn started(time: OffsetDateTime, at: Instant) -> Self {
        Self(Mutex::new(Anchor { time, at, ahead_since: None }))
    }

    fn read(&self, time_of_day: OffsetDateTime, at: Instant) -> OffsetDateTime {
        let mut anchor = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let expected = anchor.time + at.saturating_duration_since(anchor.at);
        let ahead_since =
            if time_of_day <= expected + TOLERANCE { None } else { Some(anchor.ahead_since.unwrap_or(at)) };
        let is_believed =
            ahead_since.is_none_or(|since| at.saturating_duration_since(since) >= BELIEVED_AFTER);
        *anchor = if is_believed {
            Anchor { time: time_of_day, at, ahead_since: None }
        } else {
            Anchor { time: expected, at, ahead_since }
        };
        anchor.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    const NOON: OffsetDateTime = datetime!(2026-03-15 12:00 UTC);
    const MINUTE: Duration = Duration::from_mins(1);
    const DAY: Duration = Duration::from_hours(24);

    #[test]
    fn it_follows_the_time_of_day_and_every_step_back() {
        let start = Instant::now();
        let clock = SteadyClock::started(NOON, start);
        assert_eq!(clock.read(NOON + MINUTE, start + MINUTE), NOON + MINUTE);
        // A time server corrects it by less than a minute.
        assert_eq!(clock.read(NOON + MINUTE * 3, start + MINUTE * 2), NOON + MINUTE * 3);
        assert_eq!(clock.read(NOON - DAY, start + MINUTE * 3), NOON - DAY);
    }

    #[test]
    fn it_believes_a_jump_ahead_after_a_day() {
        let start = Instant::now();
        let clock = SteadyClock::started(NOON, start);
        for minutes in 1..(24 * 60) {
            let passed = MINUTE * minutes;
            assert_eq!(clock.read(NOON + DAY * 400 + passed, start + passed), NOON + passed);
        }
        let believed = NOON + DAY * 402;
        assert_eq!(clock.read(believed, start + DAY * 2), believed);
    }

    #[test]
    fn a_jump_that_is_corrected_leaves_no_trace() {
        let start = Instant::now();
        let clock = SteadyClock::started(NOON, start);
        assert_eq!(clock.read(NOON + DAY * 400, start + MINUTE), NOON + MINUTE);
        assert_eq!(clock.read(NOON + MINUTE * 2, start + MINUTE * 2), NOON + MINUTE * 2);
        // A second jump is not accepted any sooner.
        assert_eq!(clock.read(NOON + DAY * 400, start + DAY), NOON + DAY);
        assert_eq!(clock.read(NOON + DAY * 400 + DAY, start + DAY + MINUTE), NOON + DAY + MINUTE);
    }
}
