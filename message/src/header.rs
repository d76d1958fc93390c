//! Free headers of a message, validated once so that every broker can carry them.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::text::{InvalidText, TEXT_BYTES_MAX, check, check_optional};

/// The longest accepted header value in bytes. W3C baggage asks implementations to carry 8,192
/// bytes.
pub const HEADER_VALUE_BYTES_MAX: usize = 8_192;

/// Names that the envelope itself uses on the wire, in any case.
const RESERVED: [&str; 4] = ["content-type", "traceparent", "tracestate", "message-id"];
const RESERVED_PREFIXES: [&str; 4] = ["ce_", "ce-", "cloudevents_", "cloudevents:"];

/// A header's name: 1 to 255 bytes of `A–Z a–z 0–9 - _ .`, case-sensitive, not one of the
/// envelope's own (`ce_*`, `ce-*`, `cloudEvents_*`, `content-type`, `traceparent`, `tracestate`,
/// `message-id`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HeaderName(String);

/// A header's value: at most [`HEADER_VALUE_BYTES_MAX`] bytes without control characters except
/// tab.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HeaderValue(String);

/// The free headers of a message, sorted by name; a name occurs once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(BTreeMap<HeaderName, HeaderValue>);

impl HeaderName {
    /// Whether the envelope itself uses this name, in any case; such a name is never a free header.
    #[must_use]
    pub fn is_reserved(value: &str) -> bool {
        let lower = value.to_ascii_lowercase();
        RESERVED.contains(&lower.as_str()) || RESERVED_PREFIXES.iter().any(|prefix| lower.starts_with(prefix))
    }

    /// Checks the text and takes it over.
    ///
    /// # Errors
    /// [`InvalidText`]: empty, over 255 bytes, a character outside the set, or reserved for the
    /// envelope.
    pub fn new(value: impl Into<String>) -> Result<Self, InvalidText> {
        let value = value.into();
        check("header name", &value, TEXT_BYTES_MAX, "allowed are ASCII letters, digits and - _ .", |c| {
            c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
        })?;
        if Self::is_reserved(&value) {
            return Err(InvalidText::Reserved { what: "header name", value });
        }
        Ok(Self(value))
    }

    /// The text itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl HeaderValue {
    /// Checks the text and takes it over. The empty value is accepted.
    ///
    /// # Errors
    /// [`InvalidText`]: over [`HEADER_VALUE_BYTES_MAX`] bytes, or a control character (CR, LF, NUL,
    /// …).
    pub fn new(value: impl Into<String>) -> Result<Self, InvalidText> {
        let value = value.into();
        // The error names length and place, and not the value: tokens travel in headers.
        check_optional(
            "header value",
            &value,
            HEADER_VALUE_BYTES_MAX,
            "control characters are not allowed",
            |c| c == '\t' || !c.is_control(),
        )
        .map_err(InvalidText::without_value)?;
        Ok(Self(value))
    }

    /// The text itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for HeaderValue {
    /// Its length only: tokens travel in headers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} bytes>", self.0.len())
    }
}

impl Headers {
    /// No headers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets one header, replacing the value that the name had.
    ///
    /// # Errors
    /// [`InvalidText`] as for [`HeaderName::new`] and [`HeaderValue::new`]; nothing is changed
    /// then.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<String>) -> Result<(), InvalidText> {
        self.0.insert(HeaderName::new(name)?, HeaderValue::new(value)?);
        Ok(())
    }

    /// The value of a header.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// All headers in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes of all names and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

impl TryFrom<String> for HeaderName {
    type Error = InvalidText;
    fn try_from(value: String) -> Result<Self, Self::Error> {
        Self::new(value)
    }
}

impl From<HeaderName> for String {
    fn from(value: HeaderName) -> Self {
        value.0
    }
}

impl TryFrom<String> for HeaderValue {
    type Error = InvalidText;
    fn try_from(value: String) -> Result<Self, Self::Error> {
        Self::new(value)
    }
}

impl From<HeaderValue> for String {
    fn from(value: HeaderValue) -> Self {
        value.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_injection_is_refused() {
        let mut headers = Headers::new();
        for bad in ["a\r\nx: y", "a\0", "a\nb"] {
            assert!(headers.insert("tenant", bad).is_err(), "{bad:?}");
            assert!(headers.insert(bad, "v").is_err(), "{bad:?}");
        }
        assert!(headers.is_empty());
    }

    #[test]
    fn the_names_of_the_envelope_are_reserved() {
        for name in ["ce_id", "CE_ID", "cloudEvents_id", "Content-Type", "traceparent"] {
            assert!(matches!(HeaderName::new(name), Err(InvalidText::Reserved { .. })), "{name}");
        }
    }

    #[test]
    fn names_have_1_to_255_bytes() {
        assert!(HeaderName::new("").is_err());
        assert!(HeaderName::new("h".repeat(255)).is_ok());
        assert!(HeaderName::new("h".repeat(256)).is_err());
    }
}
