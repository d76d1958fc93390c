//! How long published messages and decisions are kept.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error};

use super::units::Time;
use engine::maintenance::KEEP_DEFAULT;

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

/// A retention of messages or decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// At least this long after it was enqueued.
    For(Duration),
    /// Forever.
    Off,
}

impl Default for Retention {
    fn default() -> Self {
        Self::For(KEEP_DEFAULT)
    }
}

impl Retention {
    /// Returns the problem if the retention is out of bounds.
    pub(crate) fn check(self, Bounds { min, max }: Bounds) -> Result<(), String> {
        match self {
            Self::For(keep) if !(min..=max).contains(&keep) => {
                Err(format!("{} is outside {} to {}", Time(keep), Time(min), Time(max)))
            }
            _ => Ok(()),
        }
    }

    /// Returns the duration, unless retention is off.
    #[must_use]
    pub fn keep(self) -> Option<Duration> {
        match self {
            Self::For(keep) => Some(keep),
            Self::Off => None,
        }
    }
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::For(keep) => Time(*keep).fmt(f),
            Self::Off => f.write_str("off"),
        }
    }
}

impl<'de> Deserialize<'de> for Retention {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "off" => Ok(Self::Off),
            text => text.parse().map(|Time(keep)| Self::For(keep)).map_err(D::Error::custom),
        }
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
                assert_eq!(Retention::For(keep).check(bounds).is_ok(), is_right, "{keep:?}");
            }
            assert_eq!(Retention::Off.check(bounds), Ok(()));
        }
        assert_eq!(
            (Retention::default().to_string(), Retention::Off.to_string()),
            ("3d".into(), "off".into())
        );
        assert_eq!(Retention::For(2 * MESSAGES.max).check(MESSAGES).unwrap_err(), "10d is outside 1m to 5d");
    }
}
