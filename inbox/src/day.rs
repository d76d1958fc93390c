//! Days of message ids. A partition holds one day.

use std::fmt;

use message::MessageId;
use time::{Date, OffsetDateTime, Time};
use uuid::Uuid;

/// Default number of days whose partitions are created ahead of time. They let a consumer that
/// cannot create partitions run for a while without maintenance.
pub(crate) const DAYS_AHEAD_DEFAULT: u32 = 2;

/// Maximum number of days created ahead of time.
pub(crate) const DAYS_AHEAD_MAX: u32 = 360;

/// A day in UTC, by the time that message ids carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(Date);

impl Day {
    /// Returns the day of a time.
    #[must_use]
    pub fn of(at: OffsetDateTime) -> Self {
        Self(at.to_offset(time::UtcOffset::UTC).date())
    }

    /// Returns the day of a message id.
    #[must_use]
    pub fn of_id(id: MessageId) -> Self {
        Self::of(id.generated_at())
    }

    /// Returns the date.
    #[must_use]
    pub fn date(self) -> Date {
        self.0
    }

    /// Returns the beginning of the day.
    #[must_use]
    pub fn start(self) -> OffsetDateTime {
        OffsetDateTime::new_utc(self.0, Time::MIDNIGHT)
    }

    /// Returns the following day.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.next_day().unwrap_or(Date::MAX))
    }

    /// Returns the bounds of the day's ids: the first is included, the second is not.
    #[must_use]
    pub fn bounds(self) -> (Uuid, Uuid) {
        (floor(self.start()), floor(self.next().start()))
    }

    /// Returns the days from this one to `last`, both included.
    pub fn through(self, last: Self) -> impl Iterator<Item = Self> {
        std::iter::successors(Some(self), |day| day.0.next_day().map(Self))
            .take_while(move |day| *day <= last)
    }

    /// Returns the suffix of the day's partition: `20260301`.
    #[must_use]
    pub fn suffix(self) -> String {
        format!("{:04}{:02}{:02}", self.0.year(), u8::from(self.0.month()), self.0.day())
    }

    /// Parses the suffix of a partition.
    #[must_use]
    pub fn from_suffix(suffix: &str) -> Option<Self> {
        let format = time::macros::format_description!("[year][month][day]");
        (suffix.len() == 8).then(|| Date::parse(suffix, format).ok()).flatten().map(Self)
    }
}

/// The days from the first to the last, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DayRange {
    /// The first day.
    pub first: Day,
    /// The last day.
    pub last: Day,
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Returns the smallest id with this time. For times outside the range of ids, returns the smallest
/// or the largest UUID.
#[must_use]
pub(crate) fn floor(at: OffsetDateTime) -> Uuid {
    let limit = if at < OffsetDateTime::UNIX_EPOCH { Uuid::nil() } else { Uuid::max() };
    MessageId::floor(at).unwrap_or(limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn the_bounds_of_a_day_hold_its_ids_and_no_other() {
        let day = Day::of(datetime!(2026-03-01 12:00 UTC));
        let (from, to) = day.bounds();
        for (at, inside) in [
            (datetime!(2026-02-28 23:59:59.999 UTC), false),
            (datetime!(2026-03-01 0:00 UTC), true),
            (datetime!(2026-03-01 23:59:59.999 UTC), true),
            (datetime!(2026-03-02 0:00 UTC), false),
        ] {
            let id = MessageId::derived(at, ["x"]).unwrap();
            assert_eq!(from <= id.as_uuid() && id.as_uuid() < to, inside, "{at}");
            assert_eq!(Day::of_id(id) == day, inside, "{at}");
        }
        assert_eq!(to, day.next().bounds().0);
    }

    #[test]
    fn a_day_is_counted_in_utc_whatever_the_offset() {
        assert_eq!(Day::of(datetime!(2026-03-01 1:00 +3)), Day::of(datetime!(2026-02-28 22:00 UTC)));
    }

    #[test]
    fn suffixes_go_there_and_back() {
        let day = Day::of(datetime!(2026-12-31 0:00 UTC));
        assert_eq!(day.suffix(), "20261231");
        assert_eq!(Day::from_suffix("20261231"), Some(day));
        for foreign in ["", "default", "2026123", "20261301", "202612311"] {
            assert_eq!(Day::from_suffix(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_range_of_days_holds_both_ends() {
        let first = Day::of(datetime!(2026-02-27 0:00 UTC));
        let days: Vec<_> = first.through(Day::of(datetime!(2026-03-01 0:00 UTC))).map(Day::suffix).collect();
        assert_eq!(days, ["20260227", "20260228", "20260301"]);
        assert_eq!(first.next().through(first).count(), 0);
        let last = Day(Date::MAX);
        assert_eq!(last.through(last).take(3).count(), 1, "no day follows");
    }
}
