//! Durations and sizes as people write them: `200ms`, `1m30s`, `16MiB`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use message::units::{ShownSize, ShownTime};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A duration written with its unit, as `humantime` reads it: `500us`, `200ms`, `15s`, `1m30s`,
/// `7d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time(pub Duration);

/// A size in bytes, as `bytesize` reads it: `1000`, `64KiB`, `1.5MiB`, or decimal `kB`, `MB`, `GB`.
/// White space around it is ignored, as around a duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub usize);

/// The error for a text that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration ({1}); write a number with its unit, such as 200ms, 15s, 5m, 2h or 1d")]
pub struct NotATime(String, String);

/// The error for a text that is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a size; write bytes as a number, or with a unit such as 64KiB, 16MiB or 1GiB")]
pub struct NotASize(String);

/// Returns the beginning of a text, for an error.
fn quoted(text: &str) -> String {
    text.chars().take(40).collect()
}

impl From<Time> for Duration {
    fn from(time: Time) -> Self {
        time.0
    }
}

impl From<Size> for usize {
    fn from(size: Size) -> Self {
        size.0
    }
}

impl FromStr for Time {
    type Err = NotATime;

    fn from_str(text: &str) -> Result<Self, NotATime> {
        humantime::parse_duration(text).map(Self).map_err(|error| NotATime(quoted(text), error.to_string()))
    }
}

impl FromStr for Size {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Self, NotASize> {
        let size = text.trim().parse::<ByteSize>().ok().and_then(|size| usize::try_from(size.as_u64()).ok());
        // A number that is too large is parsed as the maximum.
        size.filter(|bytes| *bytes < usize::MAX).map(Self).ok_or_else(|| NotASize(quoted(text)))
    }
}

/// The largest unit is a day: `humantime` would print 40 days as `1month 9days 13h 26m 24s`.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ShownTime(self.0).fmt(f)
    }
}

/// Exact: the unit is the largest that divides the size.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ShownSize(self.0).fmt(f)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as 16MiB")
            }

            fn visit_i64<E: Error>(self, bytes: i64) -> Result<Size, E> {
                usize::try_from(bytes).map(Size).map_err(|_| E::custom(NotASize(bytes.to_string())))
            }

            fn visit_u64<E: Error>(self, bytes: u64) -> Result<Size, E> {
                usize::try_from(bytes).map(Size).map_err(|_| E::custom(NotASize(bytes.to_string())))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Bytes)
    }
}

impl JsonSchema for Time {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "description": "a duration with its unit: 200ms, 15s, 5m, 2h, 1d" })
    }
}

impl JsonSchema for Size {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["integer", "string"],
            "minimum": 0,
            "description": "bytes as a number, or with a unit: 64KiB, 16MiB, 1GiB"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_printed_alike() {
        for (text, micros) in [
            ("15s", 15_000_000),
            ("200ms", 200_000),
            ("500us", 500),
            ("1m30s", 90_000_000),
            ("2h", 7_200_000_000),
        ] {
            let time: Time = text.parse().unwrap();
            assert_eq!(time.0, Duration::from_micros(micros), "{text}");
            assert_eq!(time.to_string(), text);
        }
        assert_eq!("1m 30s".parse::<Time>().unwrap().0, Duration::from_secs(90));
        assert_eq!("40days".parse::<Time>().unwrap().to_string(), "40d");
        assert_eq!(" 15s\n".parse::<Time>().unwrap().0, Duration::from_secs(15));
        assert_eq!("0s".parse::<Time>().unwrap().to_string(), "0s");
    }

    #[test]
    fn a_duration_without_a_unit_or_with_another_is_refused_with_its_text() {
        for text in ["", "15", "s", "15 parsecs", "-1s", "99999999999999999999s", "999999999999999d", "15S"] {
            let error = text.parse::<Time>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("200ms"), "{error}");
        }
    }

    #[test]
    fn sizes_are_read_and_printed_alike() {
        for (text, bytes) in [("1000", 1_000), ("64KiB", 65_536), ("16MiB", 16 << 20), ("1GiB", 1 << 30)] {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, text));
        }
        assert_eq!("1 MB".parse::<Size>().unwrap().0, 1_000_000);
        assert_eq!("7B".parse::<Size>().unwrap().0, 7);
        for text in [" 16MiB ", "16MiB\n", "16 MiB", "16mib"] {
            assert_eq!(text.parse::<Size>().unwrap().0, 16 << 20, "{text:?}");
        }
        assert_eq!(" 1000\n".parse::<Size>().unwrap().0, 1_000);
        assert_eq!("1.5KiB".parse::<Size>().unwrap().0, 1_536);
        assert_eq!("0.0001KiB".parse::<Size>().unwrap().0, 0, "rounded down");
        assert_eq!("16m".parse::<Size>().unwrap().0, 16_000_000, "decimal without an i");
        for text in ["", "MiB", "16 parsecs", "-1", "99999999999GiB"] {
            let error = text.parse::<Size>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("16MiB"), "{error}");
        }
    }
}
