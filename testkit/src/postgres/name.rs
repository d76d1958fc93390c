//! The name of a world's schema. It shows who made the schema and when, and has the number of the
//! lock that its world holds.

use std::fmt;

use migrations::Identifier;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::failure::Failure;

/// The beginning of every name.
const PREFIX: &str = "testkit_";

/// Digits of a time, to the second.
const TIME_DIGITS: usize = 14;

/// Hexadecimal digits of a number.
const NUMBER_DIGITS: usize = 16;

/// `testkit_20260315120000_0123456789abcdef`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    identifier: Identifier,
    /// The number of the advisory lock.
    pub(super) number: i64,
}

impl Name {
    /// Makes a name that no other world has.
    pub(super) fn new() -> Result<Self, Failure> {
        let (_, random) = Uuid::now_v7().as_u64_pair();
        Self::made(OffsetDateTime::now_utc(), random)
    }

    fn made(at: OffsetDateTime, random: u64) -> Result<Self, Failure> {
        let date = at.date();
        let (hour, minute, second) = at.time().as_hms();
        let day = format!("{:04}{:02}{:02}", date.year(), u8::from(date.month()), date.day());
        // A lock has a positive number, so that its digits are those of the name.
        let name = format!("{PREFIX}{day}{hour:02}{minute:02}{second:02}_{:016x}", random >> 1);
        Self::read(&name).ok_or_else(|| Failure::new(format!("{name} is not a name of a schema")))
    }

    /// Reads a name, or returns `None` for a schema that no world has made.
    pub(super) fn read(name: &str) -> Option<Self> {
        let (time, number) = name.strip_prefix(PREFIX)?.split_once('_')?;
        let is_time = time.len() == TIME_DIGITS && time.bytes().all(|digit| digit.is_ascii_digit());
        if !is_time || number.len() != NUMBER_DIGITS {
            return None;
        }
        let number = i64::from_str_radix(number, 16).ok().filter(|number| *number >= 0)?;
        Some(Self { identifier: Identifier::new(name).ok()?, number })
    }

    pub(super) fn identifier(&self) -> &Identifier {
        &self.identifier
    }

    pub(super) fn as_str(&self) -> &str {
        self.identifier.as_str()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn a_name_has_the_time_and_the_number_of_its_lock() {
        let name = Name::made(datetime!(2026-03-05 04:07:09 UTC), u64::MAX).unwrap();
        assert_eq!(name.as_str(), "testkit_20260305040709_7fffffffffffffff");
        assert_eq!(name.number, i64::MAX);
        assert_eq!(Name::read(name.as_str()), Some(name));
        assert_eq!(Name::made(datetime!(2026-03-05 04:07:09 UTC), 20).unwrap().number, 10);
    }

    #[test]
    fn a_foreign_schema_is_no_name() {
        for other in [
            "public",
            "testkit_",
            "testkit_orders",
            "testkit_20260305040709",
            "testkit_20260305040709_0123",
            "testkit_20260305040709_ffffffffffffffff",
            "testkit_20260305040709_0123456789abcdeg",
            "testkit_2026030504070x_0123456789abcdef",
            "testkit_20260305040709_0123456789ABCDEF",
            "my_testkit_20260305040709_0123456789abcdef",
        ] {
            assert_eq!(Name::read(other), None, "{other}");
        }
    }
}
