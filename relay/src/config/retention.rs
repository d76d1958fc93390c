//! How long what has left is kept.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error};

use super::units::Time;
use crate::maintenance::KEEP_DEFAULT;

const HOUR: Duration = Duration::from_secs(3_600);
/// Shorter, and a producer that makes an id again after a crash would not find it.
const MIN: Duration = Duration::from_secs(60);
/// On PostgreSQL the ring of segments comes round after 6 days 5 hours: a segment has to go before
/// that.
const MAX: Duration = HOUR.saturating_mul(5 * 24);

/// How long what has left is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// At least so long after it was enqueued.
    For(Duration),
    /// For ever.
    Off,
}

impl Default for Retention {
    fn default() -> Self {
        Self::For(KEEP_DEFAULT)
    }
}

impl Retention {
    /// Whether it is within its bounds; says what is wrong.
    pub(crate) fn check(self) -> Result<(), String> {
        match self {
            Self::For(keep) if !(MIN..=MAX).contains(&keep) => {
                Err(format!("{} is outside {} to {}", Time(keep), Time(MIN), Time(MAX)))
            }
            _ => Ok(()),
        }
    }

    /// The duration, unless it is off.
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
        for (keep, is_right) in [(MIN, true), (MAX, true), (MIN / 2, false), (MAX * 2, false)] {
            assert_eq!(Retention::For(keep).check().is_ok(), is_right, "{keep:?}");
        }
        assert_eq!(Retention::Off.check(), Ok(()));
        assert_eq!(
            (Retention::default().to_string(), Retention::Off.to_string()),
            ("3d".into(), "off".into())
        );
        assert_eq!(Retention::For(MAX * 2).check().unwrap_err(), "10d is outside 1m to 5d");
    }
}
