//! Names that configuration puts into SQL.

use std::fmt;
use std::str::FromStr;

/// The longest name that PostgreSQL keeps (`NAMEDATALEN - 1`); it silently truncates longer ones.
pub const IDENTIFIER_BYTES_MAX: usize = 63;

/// A name of a schema, table or partition: 1 to 63 bytes of `a–z 0–9 _`, not beginning with a
/// digit. Lower case only, so that it means the same quoted and unquoted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identifier(String);

/// A text that cannot be a name in SQL. The operator is at fault; not retryable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{value:?} is not usable as a name in SQL; use 1 to {IDENTIFIER_BYTES_MAX} characters of a-z, 0-9 and _, \
     not beginning with a digit"
)]
pub struct InvalidIdentifier {
    /// The first characters of the text.
    pub value: String,
}

impl Identifier {
    /// Checks the text and returns it as a name.
    ///
    /// # Errors
    /// [`InvalidIdentifier`] with the text.
    pub fn new(value: impl Into<String>) -> Result<Self, InvalidIdentifier> {
        let value = value.into();
        let head = value.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
        let tail = value.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if head && tail && value.len() <= IDENTIFIER_BYTES_MAX {
            Ok(Self(value))
        } else {
            Err(InvalidIdentifier { value: value.chars().take(64).collect() })
        }
    }

    /// Makes a name that is part of the program.
    pub(crate) fn of_program(name: &'static str) -> Self {
        debug_assert!(Self::new(name).is_ok(), "{name}");
        Self(name.to_owned())
    }

    /// Returns the text itself, unquoted.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the text as SQL needs it: quoted, because it may be a reserved word such as `order`.
    pub(crate) fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

/// A name in a foreign schema: 1 to 63 bytes of letters, digits, `_`, `-` and inner spaces. It is
/// always quoted, so SQL takes it unchanged, including upper case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ForeignIdentifier(String);

/// A text that cannot be a name in a foreign schema. The operator is at fault; not retryable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{value:?} is not usable as a name; use 1 to {IDENTIFIER_BYTES_MAX} bytes of letters, digits, _, - and \
     spaces inside, as the catalog has it and without quotes"
)]
pub struct InvalidForeignIdentifier {
    /// The first characters of the text.
    pub value: String,
}

impl ForeignIdentifier {
    /// Checks the text and returns it as a name.
    ///
    /// # Errors
    /// [`InvalidForeignIdentifier`] with the text.
    pub fn new(value: impl Into<String>) -> Result<Self, InvalidForeignIdentifier> {
        let value = value.into();
        // A quote would end the name, a brace would name a placeholder, and a dollar sign would end
        // the body of a function around it.
        let is_usable = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | ' ');
        let is_right = !value.is_empty() && value.len() <= IDENTIFIER_BYTES_MAX && value.trim() == value;
        if is_right && value.chars().all(is_usable) {
            Ok(Self(value))
        } else {
            Err(InvalidForeignIdentifier { value: value.chars().take(64).collect() })
        }
    }

    /// Returns the text itself, unquoted.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ForeignIdentifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name that can be put into a template.
pub trait SqlName: sealed::Sealed {}

impl SqlName for Identifier {}
impl SqlName for ForeignIdentifier {}

pub(crate) mod sealed {
    pub trait Sealed {
        /// Returns the text as SQL needs it: quoted, because it may be a reserved word such as
        /// `order`.
        fn quoted(&self) -> String;
    }
}

impl sealed::Sealed for Identifier {
    fn quoted(&self) -> String {
        Self::quoted(self)
    }
}

impl sealed::Sealed for ForeignIdentifier {
    fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

impl fmt::Display for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Identifier {
    type Err = InvalidIdentifier;

    fn from_str(value: &str) -> Result<Self, Self::Err> {
        Self::new(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_lower_case_names_pass() {
        for good in ["app", "_x", "order", "inbox_message_20260301"] {
            assert!(Identifier::new(good).is_ok(), "{good}");
        }
        for bad in ["", "App", "1st", "a-b", "a b", "a\"; DROP TABLE x; --", "ä", "a.b"] {
            assert_eq!(Identifier::new(bad), Err(InvalidIdentifier { value: bad.into() }));
        }
        assert!(Identifier::new("a".repeat(63)).is_ok());
        assert!(Identifier::new("a".repeat(64)).is_err());
    }

    #[test]
    fn foreign_names_keep_their_case_and_nothing_ends_their_quotes() {
        for good in ["OutboxMessage", "published", "1st", "ä", "event-outbox", "Order Lines"] {
            let name = ForeignIdentifier::new(good).unwrap();
            assert_eq!(sealed::Sealed::quoted(&name), format!("\"{good}\""));
        }
        for bad in
            ["", " a", "a ", "a\"b", "a'b", "a$b", "{home}", "a.b", "a\nb", "a\0b", "a;b", "a\\b", "a=b"]
        {
            assert_eq!(ForeignIdentifier::new(bad), Err(InvalidForeignIdentifier { value: bad.into() }));
        }
        assert!(ForeignIdentifier::new("ä".repeat(31)).is_ok());
        assert!(ForeignIdentifier::new("ä".repeat(32)).is_err(), "bytes are counted");
    }
}
