//! Moves times without leaving their range.

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
}
