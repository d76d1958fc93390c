//! The bounds of how long history is kept. A relay checks them before it starts, whether it is the
//! program or a part of a service.

use std::time::Duration;

use message::units::ShownTime;

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// For messages. With a shorter time, a producer that recreates an id after a crash would not find
/// it. On PostgreSQL the ring of segments starts over after 6 days 5 hours, and a segment must be
/// emptied before that.
pub const KEEP_MESSAGES: KeepBounds = KeepBounds { min: Duration::from_secs(60), max: DAY.saturating_mul(5) };

/// For operators' decisions. PostgreSQL removes nothing younger than the minimum.
pub const KEEP_DECISIONS: KeepBounds =
    KeepBounds { min: DAY.saturating_mul(30), max: DAY.saturating_mul(36_525) };

/// The bounds of how long something is kept; both are included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepBounds {
    /// The shortest time.
    pub min: Duration,
    /// The longest time.
    pub max: Duration,
}

impl KeepBounds {
    /// Checks a time.
    ///
    /// # Errors
    /// [`KeepOutOfBounds`] with the time and the bounds.
    pub fn check(self, keep: Duration) -> Result<(), KeepOutOfBounds> {
        if (self.min..=self.max).contains(&keep) {
            Ok(())
        } else {
            Err(KeepOutOfBounds { keep, bounds: self })
        }
    }
}

/// The error for a time that is out of bounds. The program or its configuration is at fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is outside {} to {}", ShownTime(*.keep), ShownTime(.bounds.min), ShownTime(.bounds.max))]
pub struct KeepOutOfBounds {
    /// The time.
    pub keep: Duration,
    /// The bounds.
    pub bounds: KeepBounds,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_are_included_and_named() {
        for bounds in [KEEP_MESSAGES, KEEP_DECISIONS] {
            let KeepBounds { min, max } = bounds;
            for (keep, is_right) in [(min, true), (max, true), (min / 2, false), (max * 2, false)] {
                assert_eq!(bounds.check(keep).is_ok(), is_right, "{keep:?}");
            }
        }
        let long = KEEP_MESSAGES.check(2 * KEEP_MESSAGES.max).unwrap_err();
        assert_eq!(long.to_string(), "10d is outside 1m to 5d");
    }
}
