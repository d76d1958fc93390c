//! Filters for replays.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use message::{OrderingKey, Topic};
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

use crate::dead::MessageRef;
use crate::seconds;
use crate::units::Time;

/// A moment: an age by the database's clock, or a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// An age: this long before now.
    Ago(Duration),
    /// At this time.
    At(OffsetDateTime),
}

impl Moment {
    /// Returns the time, relative to `now`.
    #[must_use]
    pub fn at(self, now: OffsetDateTime) -> OffsetDateTime {
        match self {
            Self::At(at) => at,
            Self::Ago(ago) => {
                now.checked_sub(ago.try_into().unwrap_or(time::Duration::MAX)).unwrap_or(EARLIEST)
            }
        }
    }
}

const EARLIEST: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(time) = text.parse::<Time>() {
            return Ok(Self::Ago(time.0));
        }
        // Converted to UTC, which fails for a time at the end of the calendar.
        let time = OffsetDateTime::parse(text, &Rfc3339).ok();
        time.and_then(|time| time.checked_to_offset(UtcOffset::UTC)).map(Self::At).ok_or_else(|| {
            let text: String = text.chars().take(40).collect();
            format!("{text:?} is not a time; write an age (2h, 7d) or a time (2026-01-31T12:00:00Z)")
        })
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ago(ago) => write!(f, "{} ago", Time(*ago)),
            Self::At(at) => f.write_str(&seconds::text(*at)),
        }
    }
}

/// Conditions that a message must all meet; without any, all messages match.
#[derive(Debug, Clone, Default)]
pub struct ReplayFilter {
    /// Only these messages; if empty, all.
    pub ids: Vec<MessageRef>,
    /// Only messages of this topic.
    pub topic: Option<Topic>,
    /// Only messages with this ordering key.
    pub key: Option<OrderingKey>,
    /// Only messages from this position in the log on.
    pub from_id: Option<i64>,
    /// Only messages up to this position in the log.
    pub to_id: Option<i64>,
    /// Only messages enqueued at this time or later.
    pub since: Option<Moment>,
    /// Only messages enqueued at this time or earlier.
    pub until: Option<Moment>,
}

impl fmt::Display for ReplayFilter {
    /// Formats it for the audit: `topic=orders from_id=7`; `all` without any condition.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<String> = self.ids.iter().map(MessageRef::to_string).collect();
        let parts = [
            ("id", (!ids.is_empty()).then(|| ids.join(","))),
            ("topic", self.topic.as_ref().map(|topic| topic.as_str().to_owned())),
            ("key", self.key.as_ref().map(|key| key.as_str().to_owned())),
            ("from_id", self.from_id.map(|id| id.to_string())),
            ("to_id", self.to_id.map(|id| id.to_string())),
            ("since", self.since.map(|since| since.to_string())),
            ("until", self.until.map(|until| until.to_string())),
        ];
        let told: Vec<String> =
            parts.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?))).collect();
        f.write_str(if told.is_empty() { "all" } else { "" })?;
        f.write_str(&told.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_time_or_so_long_ago() {
        let now = OffsetDateTime::from_unix_timestamp(1_700_000_000).unwrap();
        let at = |text: &str| text.parse::<Moment>().map(|moment| moment.at(now).unix_timestamp());
        assert_eq!(at("1h"), Ok(1_700_000_000 - 3_600));
        assert_eq!(at("2023-11-14T22:13:20Z"), Ok(1_700_000_000));
        assert!(at("yesterday").unwrap_err().contains("2h, 7d"));
        assert!(at("").is_err());
    }

    #[test]
    fn a_moment_in_another_zone_is_told_in_utc() {
        let told = |text: &str| text.parse::<Moment>().map(|moment| moment.to_string());
        assert_eq!(told("2026-01-31T01:30:00+02:00"), Ok(String::from("2026-01-30T23:30:00Z")));
        assert!(told("9999-12-31T23:59:59-01:00").is_err(), "a year that cannot be written");
    }

    #[test]
    fn the_audit_names_every_condition() {
        assert_eq!(ReplayFilter::default().to_string(), "all");
        let filter = ReplayFilter {
            topic: Some(Topic::new("orders").unwrap()),
            from_id: Some(7),
            until: Some(Moment::Ago(Duration::from_secs(3_600))),
            ..ReplayFilter::default()
        };
        assert_eq!(filter.to_string(), "topic=orders from_id=7 until=1h ago");
    }
}
