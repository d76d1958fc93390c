//! The ids that are accepted at a given time. Pure: no clock, no database.

use std::time::Duration;

use message::token::{AcceptedTimes, Drift};
use message::{MessageId, ahead, back};
use time::OffsetDateTime;

use crate::day::Day;
use crate::refusal::Refusal;

/// How long after the retention of its last id a day is expired. So the local refusal always comes
/// first.
const EXPIRY_MARGIN: Duration = Duration::from_secs(3_600);

/// The ids that the inbox accepts at one time of the database's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The database's time.
    pub now: OffsetDateTime,
    /// How long this process remembers ids.
    pub retention: Duration,
    /// How far ahead of `now` an id may be.
    pub skew_max: Duration,
    /// Where the memory of the tables begins, independent of this process's retention.
    pub retained_from: OffsetDateTime,
}

impl Window {
    /// Returns the oldest accepted generation time.
    #[must_use]
    pub fn oldest_accepted_at(&self) -> OffsetDateTime {
        back(self.now, self.retention).max(self.retained_from)
    }

    /// Returns the newest accepted generation time.
    #[must_use]
    pub fn newest_accepted_at(&self) -> OffsetDateTime {
        ahead(self.now, self.skew_max)
    }

    /// Validates the time of an id.
    ///
    /// # Errors
    /// [`Refusal::TooOld`] and [`Refusal::FromTheFuture`].
    pub fn validate(&self, id: MessageId) -> Result<(), Refusal> {
        self.validate_remembered(id, self.oldest_accepted_at())
    }

    /// Does the same as [`validate`](Self::validate), but refuses as too old only ids that the
    /// tables no longer remember: for redriving a late message whose day still exists.
    ///
    /// # Errors
    /// [`Refusal::TooOld`] and [`Refusal::FromTheFuture`].
    pub fn validate_late(&self, id: MessageId) -> Result<(), Refusal> {
        self.validate_remembered(id, self.retained_from)
    }

    fn validate_remembered(&self, id: MessageId, oldest_accepted_at: OffsetDateTime) -> Result<(), Refusal> {
        let generated_at = id.generated_at();
        let accepted = AcceptedTimes { oldest_accepted_at, newest_accepted_at: self.newest_accepted_at() };
        accepted.validate(id).map_err(|drift| match drift {
            Drift::TooOld { oldest_accepted_at, .. } => {
                Refusal::TooOld { id, generated_at, oldest_accepted_at }
            }
            Drift::TooFarAhead { newest_accepted_at, .. } => {
                Refusal::FromTheFuture { id, generated_at, newest_accepted_at }
            }
        })
    }

    /// Returns the days whose partitions must exist: those of every accepted id, and `days_ahead`
    /// more.
    #[must_use]
    pub fn days(&self, days_ahead: u32) -> (Day, Day) {
        let days_ahead = Duration::from_secs(u64::from(days_ahead) * 86_400);
        let ahead = ahead(self.newest_accepted_at(), days_ahead);
        (Day::of(self.oldest_accepted_at()), Day::of(ahead))
    }

    /// Returns the first day to keep; the days before it can be forgotten.
    #[must_use]
    pub fn keep_from(&self) -> Day {
        Day::of(back(back(self.now, self.retention), EXPIRY_MARGIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::day::DAYS_AHEAD_DEFAULT;
    use time::macros::datetime;

    const NOW: OffsetDateTime = datetime!(2026-03-15 12:00 UTC);

    fn window(retained_from: OffsetDateTime) -> Window {
        Window {
            now: NOW,
            retention: Duration::from_secs(14 * 86_400),
            skew_max: Duration::from_secs(300),
            retained_from,
        }
    }

    fn validated(window: Window, at: OffsetDateTime) -> &'static str {
        match window.validate(MessageId::derived(at, ["x"]).unwrap()) {
            Ok(()) => "accepted",
            Err(Refusal::TooOld { .. }) => "too old",
            Err(Refusal::FromTheFuture { .. }) => "future",
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn ids_are_validated_by_both_ends_of_the_window() {
        let from_the_start = window(datetime!(2026-01-01 0:00 UTC));
        let moved = window(datetime!(2026-03-10 0:00 UTC));
        for (window, at, verdict) in [
            (from_the_start, datetime!(2026-03-01 11:59:59.999 UTC), "too old"),
            (from_the_start, datetime!(2026-03-01 12:00 UTC), "accepted"),
            (from_the_start, NOW, "accepted"),
            (from_the_start, datetime!(2026-03-15 12:05 UTC), "accepted"),
            (from_the_start, datetime!(2026-03-15 12:05:00.001 UTC), "future"),
            // Another process has expired more than this process's retention allows.
            (moved, datetime!(2026-03-09 23:59:59.999 UTC), "too old"),
            (moved, datetime!(2026-03-10 0:00 UTC), "accepted"),
        ] {
            assert_eq!(validated(window, at), verdict, "{at}");
        }
    }

    #[test]
    fn a_refusal_names_both_times() {
        let window = window(datetime!(2026-01-01 0:00 UTC));
        let old = MessageId::derived(datetime!(2026-02-01 0:00 UTC), ["x"]).unwrap();
        let text = window.validate(old).unwrap_err().to_string();
        assert!(text.contains("2026-02-01 0:00:00.0 +00:00:00"), "{text}");
        assert!(text.contains("2026-03-01 12:00:00.0 +00:00:00"), "{text}");
    }

    #[test]
    fn what_is_expired_is_refused_and_what_is_accepted_has_a_day() {
        for hour in 0..48 {
            let mut window = window(datetime!(2026-01-01 0:00 UTC));
            window.now += time::Duration::hours(hour);
            assert!(window.keep_from().start() <= window.oldest_accepted_at());
            let (first, last) = window.days(DAYS_AHEAD_DEFAULT);
            assert!(first >= window.keep_from() && first.start() <= window.oldest_accepted_at());
            assert!(last.start() > window.newest_accepted_at());
        }
    }
}
