//! How long published messages and decisions are kept.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use engine::maintenance::KEEP_DEFAULT;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error};

use crate::units::Time;

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

impl JsonSchema for Retention {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Retention".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "description": "a duration, or off" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_and_off_are_shown_as_they_are_written() {
        assert_eq!(
            (Retention::default().to_string(), Retention::Off.to_string()),
            ("3d".into(), "off".into())
        );
    }
}
