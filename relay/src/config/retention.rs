//! The bounds of how long published messages and decisions are kept.

use std::time::Duration;

use operate::Retention;
use operate::units::Time;

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// The bounds of a retention.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    min: Duration,
    max: Duration,
}

/// For messages. With a shorter retention, a producer that recreates an id after a crash would not
/// find it. On PostgreSQL the ring of segments comes round after 6 days 5 hours, and a segment must
/// be emptied before that.
pub(crate) const MESSAGES: Bounds = Bounds { min: Duration::from_secs(60), max: DAY.saturating_mul(5) };

/// For operators' decisions. The database removes nothing younger than the minimum.
pub(crate) const DECISIONS: Bounds = Bounds { min: DAY.saturating_mul(30), max: DAY.saturating_mul(36_525) };

/// Returns the problem if a retention is out of bounds.
pub(crate) fn check(retention: Retention, Bounds { min, max }: Bounds) -> Result<(), String> {
    match retention {
        Retention::For(keep) if !(min..=max).contains(&keep) => {
            Err(format!("{} is outside {} to {}", Time(keep), Time(min), Time(max)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_and_off() {
        for bounds in [MESSAGES, DECISIONS] {
            let Bounds { min, max } = bounds;
            for (keep, is_right) in [(min, true), (max, true), (min / 2, false), (max * 2, false)] {
                assert_eq!(check(Retention::For(keep), bounds).is_ok(), is_right, "{keep:?}");
            }
            assert_eq!(check(Retention::Off, bounds), Ok(()));
        }
        let long = Retention::For(2 * MESSAGES.max);
        assert_eq!(check(long, MESSAGES).unwrap_err(), "10d is outside 1m to 5d");
    }
}
