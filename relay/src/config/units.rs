//! Durations and sizes as people write them: `200ms`, `15s`, `16MiB`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A duration written with its unit: `500us`, `200ms`, `15s`, `5m`, `2h`, `1d`; several parts add up (`1m30s`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Time(pub(crate) Duration);

/// A size in bytes: `1000`, `64KiB`, `16MiB`, `1GiB`, or decimal `kB`, `MB`, `GB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) usize);

/// A text that is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration; write a number with its unit, such as 200ms, 15s, 5m, 2h or 1d")]
pub(crate) struct NotATime(String);

/// A text that is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a size; write bytes as a number, or with a unit such as 64KiB, 16MiB or 1GiB")]
pub(crate) struct NotASize(String);

/// In micros, from the largest to the smallest.
const TIMES: [(&str, u64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

/// In bytes, binary units first: those are printed.
const SIZES: [(&str, usize); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

impl FromStr for Time {
    type Err = NotATime;

    fn from_str(text: &str) -> Result<Self, NotATime> {
        let wrong = || NotATime(text.chars().take(40).collect());
        let mut rest: String = text.split_whitespace().collect();
        let mut micros = 0_u64;
        if rest.is_empty() {
            return Err(wrong());
        }
        while !rest.is_empty() {
            let (number, after) = number(&rest).ok_or_else(wrong)?;
            let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
            let (unit, after) = after.split_at(end);
            let (_, factor) = TIMES.into_iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
            let part = number.checked_mul(factor).ok_or_else(wrong)?;
            micros = micros.checked_add(part).ok_or_else(wrong)?;
            rest = after.to_owned();
        }
        Ok(Self(Duration::from_micros(micros)))
    }
}

impl FromStr for Size {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Self, NotASize> {
        let wrong = || NotASize(text.chars().take(40).collect());
        let (number, unit) = number(text.trim()).ok_or_else(wrong)?;
        let unit = unit.trim();
        let factor = match unit {
            "" => 1,
            unit => SIZES
                .into_iter()
                .find(|(name, _)| *name == unit)
                .map(|(_, factor)| factor)
                .ok_or_else(wrong)?,
        };
        let bytes = usize::try_from(number).ok().and_then(|number| number.checked_mul(factor));
        bytes.map(Self).ok_or_else(wrong)
    }
}

/// The whole number at the beginning of a text, and what follows it.
fn number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    Some((digits.parse().ok()?, rest))
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX);
        if rest == 0 {
            return f.write_str("0s");
        }
        for (unit, factor) in TIMES {
            if rest >= factor {
                write!(f, "{}{unit}", rest / factor)?;
                rest %= factor;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact =
            SIZES.into_iter().take(3).find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        match exact {
            Some((unit, factor)) => write!(f, "{}{unit}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
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
            ("1d", 86_400_000_000),
        ] {
            let time: Time = text.parse().unwrap();
            assert_eq!(time.0, Duration::from_micros(micros), "{text}");
            assert_eq!(time.to_string(), text);
        }
        assert_eq!("1m 30s".parse::<Time>().unwrap().0, Duration::from_secs(90));
        assert_eq!("0s".parse::<Time>().unwrap().to_string(), "0s");
    }

    #[test]
    fn a_duration_without_a_unit_or_with_another_is_refused_with_its_text() {
        for text in
            ["", "15", "s", "15 parsecs", "-1s", "1.5s", "99999999999999999999s", "99999999999999d", "15S"]
        {
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
        for text in ["", "MiB", "16 mib", "-1", "1.5MiB", "99999999999GiB"] {
            let error = text.parse::<Size>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("16MiB"), "{error}");
        }
    }
}
