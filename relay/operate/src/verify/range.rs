//! The messages to compare: those whose ids were generated in a span of time.

use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

/// Message ids from `after`, exclusive, to `until`, inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub(super) after: Uuid,
    pub(super) until: Uuid,
    /// The time of the first id in milliseconds since 1970; `None` means from the beginning.
    pub(super) from_ms: Option<u64>,
}

/// Returns the smallest version 7 id of a millisecond.
pub(super) fn id_at(ms: u64) -> Uuid {
    Uuid::from_u128((u128::from(ms) << 80) | (7 << 76) | (2 << 62))
}

impl Range {
    /// Covers the ids made between the ages `since` and `until`.
    #[must_use]
    pub fn new(now: OffsetDateTime, since: Option<Duration>, until: Option<Duration>) -> Self {
        let now_ms = u64::try_from(now.unix_timestamp_nanos() / 1_000_000).unwrap_or_default();
        let ago = |duration: Duration| {
            now_ms.saturating_sub(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
        };
        let from_ms = since.map(ago);
        let after = from_ms.map_or(Uuid::nil(), |ms| Uuid::from_u128(id_at(ms).as_u128().saturating_sub(1)));
        let until = id_at(until.map_or(now_ms, ago) + 1);
        Self { after, until: Uuid::from_u128(until.as_u128() - 1), from_ms }
    }

    pub(super) fn contains(&self, id: Uuid) -> bool {
        id > self.after && id <= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_of_time_is_a_range_of_ids() {
        let now = OffsetDateTime::from_unix_timestamp(1_700_000_000).unwrap();
        let range = Range::new(now, Some(Duration::from_secs(60)), Some(Duration::from_secs(10)));
        let id = |seconds: u64, last: u128| {
            Uuid::from_u128(id_at((1_700_000_000 - seconds) * 1_000).as_u128() + last)
        };
        for (id, inside) in
            [(id(61, 0), false), (id(60, 0), true), (id(30, 9), true), (id(10, 9), true), (id(9, 0), false)]
        {
            assert_eq!(range.contains(id), inside, "{id}");
        }
        assert_eq!(id_at(5).get_version_num(), 7);
        assert!(Range::new(now, None, None).contains(id(1_000_000, 0)));
    }
}
