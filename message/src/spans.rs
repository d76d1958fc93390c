//! Moves times without leaving their range, and shortens limits that are too long to be added to
//! them.

use std::time::Duration;

use time::{Date, OffsetDateTime, Time};

/// Moves `at` back, but not before the first time that an id can contain.
#[must_use]
pub fn back(at: OffsetDateTime, by: Duration) -> OffsetDateTime {
    time::Duration::try_from(by)
        .ok()
        .and_then(|by| at.checked_sub(by))
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
        .max(OffsetDateTime::UNIX_EPOCH)
}

/// Moves `at` forward, but not past the last representable date.
#[must_use]
pub fn ahead(at: OffsetDateTime, by: Duration) -> OffsetDateTime {
    let last = OffsetDateTime::new_utc(Date::MAX, Time::MIDNIGHT);
    time::Duration::try_from(by).ok().and_then(|by| at.checked_add(by)).unwrap_or(last)
}

/// The longest wait: thirty years.
const WAIT_MAX: Duration = Duration::from_secs(30 * 365 * 86_400);

/// Returns a limit or an interval that can be added to any clock: itself, or thirty years if it is
/// longer. [`Duration::MAX`] is an obvious way to say "without a limit", and `Instant` panics when
/// a sum is out of its range.
#[must_use]
pub fn finite(limit: Duration) -> Duration {
    limit.min(WAIT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn moving_beyond_the_ends_of_time_stops_there() {
        let at = datetime!(2026-03-01 0:00 UTC);
        assert_eq!(back(at, Duration::MAX), OffsetDateTime::UNIX_EPOCH);
        assert!(ahead(at, Duration::MAX) > at);
    }

    #[test]
    fn a_limit_without_an_end_can_be_added_to_a_clock() {
        let now = tokio::time::Instant::now();
        let doubled = finite(Duration::MAX) + finite(Duration::MAX);
        assert!(now + doubled > now + Duration::from_secs(50 * 365 * 86_400));
        assert_eq!(finite(Duration::from_secs(7)), Duration::from_secs(7));
    }
}
