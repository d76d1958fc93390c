//! Validated names of who consumes, and for whom.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The longest name in bytes of UTF-8; the tables check the same.
pub const NAME_BYTES_MAX: usize = 255;

/// A name that cannot be used. The caller's fault; not retryable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidName {
    /// The text has no characters.
    #[error("the {what} is empty; give it 1 to {NAME_BYTES_MAX} bytes")]
    Empty {
        /// The kind of name that the text was meant to be.
        what: &'static str,
    },
    /// The text is longer than the limit.
    #[error("the {what} {value:?}… has {bytes} bytes; the limit is {NAME_BYTES_MAX}")]
    TooLong {
        /// The kind of name that the text was meant to be.
        what: &'static str,
        /// Its first characters.
        value: String,
        /// Its length in bytes.
        bytes: usize,
    },
    /// The text holds a control character, which would break log lines and which PostgreSQL may not
    /// store.
    #[error("the {what} {value:?} has the control character {found:?} at byte {at}; remove it")]
    Control {
        /// The kind of name that the text was meant to be.
        what: &'static str,
        /// Its first characters.
        value: String,
        /// The offending character.
        found: char,
        /// Where it stands, in bytes.
        at: usize,
    },
}

pub(crate) fn check(what: &'static str, value: &str) -> Result<(), InvalidName> {
    if value.len() > NAME_BYTES_MAX {
        return Err(InvalidName::TooLong {
            what,
            value: value.chars().take(32).collect(),
            bytes: value.len(),
        });
    }
    match value.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, found)) => {
            Err(InvalidName::Control { what, value: value.chars().take(64).collect(), found, at })
        }
        None => Ok(()),
    }
}

/// Who consumes: one name per handler, the same in all its processes. Two consumers on one table
/// both handle every message. 1 to [`NAME_BYTES_MAX`] bytes, no control characters.
///
/// Renaming a consumer makes it a new one, which has seen no message yet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerName(Arc<str>);

impl ConsumerName {
    /// Checks the text and takes it over.
    ///
    /// # Errors
    /// [`InvalidName`] when it is empty, too long or holds a control character.
    pub fn new(value: impl Into<Arc<str>>) -> Result<Self, InvalidName> {
        let value = value.into();
        if value.is_empty() {
            return Err(InvalidName::Empty { what: "consumer name" });
        }
        check("consumer name", &value)?;
        Ok(Self(value))
    }

    /// The text itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<&str> for ConsumerName {
    type Error = InvalidName;

    fn try_from(value: &str) -> Result<Self, InvalidName> {
        Self::new(value)
    }
}

impl TryFrom<String> for ConsumerName {
    type Error = InvalidName;

    fn try_from(value: String) -> Result<Self, InvalidName> {
        Self::new(value)
    }
}

impl From<std::convert::Infallible> for InvalidName {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// For whom: the tenant or account, part of the key, so that one tenant's id never hides another
/// tenant's message. At most [`NAME_BYTES_MAX`] bytes, no control characters; empty where there are
/// no tenants.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(Arc<str>);

impl Tenant {
    /// Checks the text and takes it over.
    ///
    /// # Errors
    /// [`InvalidName`] when it is too long or holds a control character.
    pub fn new(value: impl Into<Arc<str>>) -> Result<Self, InvalidName> {
        let value = value.into();
        check("scope", &value)?;
        Ok(Self(value))
    }

    /// The scope of everybody.
    #[must_use]
    pub fn none() -> Self {
        Self(Arc::from(""))
    }

    /// The text itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self::none()
    }
}

impl fmt::Display for ConsumerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ConsumerName {
    type Err = InvalidName;
    fn from_str(value: &str) -> Result<Self, InvalidName> {
        Self::new(value)
    }
}

impl FromStr for Tenant {
    type Err = InvalidName;
    fn from_str(value: &str) -> Result<Self, InvalidName> {
        Self::new(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_names_are_refused_with_their_limit() {
        assert_eq!(ConsumerName::new(""), Err(InvalidName::Empty { what: "consumer name" }));
        assert!(ConsumerName::new("c".repeat(255)).is_ok());
        let error = ConsumerName::new("c".repeat(256)).unwrap_err().to_string();
        assert!(error.contains("256 bytes; the limit is 255"), "{error}");
        assert!(matches!(Tenant::new("a\0b"), Err(InvalidName::Control { at: 1, .. })));
        assert_eq!(Tenant::new("").unwrap(), Tenant::none());
    }
}
