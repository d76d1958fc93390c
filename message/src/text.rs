//! Validated names: short texts that brokers put into routing keys, partition keys and header
//! values.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The longest accepted name in bytes of UTF-8. The tightest bound of the brokers: AMQP 0-9-1
/// carries routing keys, message ids and header names as short strings of at most 255 bytes (AMQP
/// 0-9-1 specification, section 4.2.5.3).
pub const TEXT_BYTES_MAX: usize = 255;

/// The longest note on an operator's decision, in bytes. It is stored with each message that the
/// decision is about.
pub const NOTE_BYTES_MAX: usize = 2_000;

/// A name that cannot be used, with the reason and the limit. The producer's fault; not retryable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidText {
    /// The text has no characters.
    #[error("{what} is empty; give it 1 to {bytes_max} bytes")]
    Empty {
        /// The kind of text, such as `event type`.
        what: &'static str,
        /// The limit in bytes.
        bytes_max: usize,
    },
    /// The text is longer than the limit.
    #[error("{what} {value:?}… has {bytes} bytes; the limit is {bytes_max}")]
    TooLong {
        /// The kind of text, such as `event type`.
        what: &'static str,
        /// The first characters of the text.
        value: String,
        /// Its length in bytes.
        bytes: usize,
        /// The limit in bytes.
        bytes_max: usize,
    },
    /// The text holds a character that would break a header or a log line (CR, LF, NUL, other
    /// controls), or a character outside the accepted set.
    #[error("{what} {value:?} has the character {found:?} at byte {at}; {allowed}")]
    Character {
        /// The kind of text, such as `event type`.
        what: &'static str,
        /// The text.
        value: String,
        /// The offending character.
        found: char,
        /// Its position, in bytes.
        at: usize,
        /// The characters that are accepted.
        allowed: &'static str,
    },
    /// There are more texts of this kind than the limit.
    #[error("there are more than {count_max} {what}s; put the rest into the payload")]
    TooMany {
        /// The kind of text, such as `header`.
        what: &'static str,
        /// The limit.
        count_max: usize,
    },
    /// The name belongs to the envelope itself.
    #[error("{what} {value:?} is reserved for the envelope; choose another name")]
    Reserved {
        /// The kind of text, such as `event type`.
        what: &'static str,
        /// The text.
        value: String,
    },
}

/// Checks `value` as a name: 1 to `bytes_max` bytes, every character accepted by `accept`.
///
/// # Errors
/// [`InvalidText`].
#[doc(hidden)]
pub fn check_name(
    what: &'static str,
    value: &str,
    bytes_max: usize,
    allowed: &'static str,
    accept: impl Fn(char) -> bool,
) -> Result<(), InvalidText> {
    if value.is_empty() {
        return Err(InvalidText::Empty { what, bytes_max });
    }
    check_optional(what, value, bytes_max, allowed, accept)
}

/// Checks the actor and the note of an operator's decision, which every audit stores.
///
/// # Errors
/// [`InvalidText`]: a text that is blank, too long, or holds a NUL character, which PostgreSQL does
/// not store.
#[doc(hidden)]
pub fn check_signature(actor: &str, note: &str) -> Result<(), InvalidText> {
    let parts = [
        ("the actor of a decision", actor, TEXT_BYTES_MAX),
        ("the note of a decision", note, NOTE_BYTES_MAX),
    ];
    parts.into_iter().try_for_each(|(what, text, bytes_max)| {
        let text = if text.trim().is_empty() { "" } else { text };
        check_name(what, text, bytes_max, "NUL is not allowed", |c| c != '\0')
    })
}

impl InvalidText {
    /// Returns the same error without the text.
    pub(crate) fn without_value(mut self) -> Self {
        if let Self::TooLong { value, .. } | Self::Character { value, .. } = &mut self {
            *value = String::from("***");
        }
        self
    }
}

/// Checks `value` like [`check_name`], but accepts an empty string.
///
/// # Errors
/// [`InvalidText`].
#[doc(hidden)]
pub fn check_optional(
    what: &'static str,
    value: &str,
    bytes_max: usize,
    allowed: &'static str,
    accept: impl Fn(char) -> bool,
) -> Result<(), InvalidText> {
    if value.len() > bytes_max {
        return Err(InvalidText::TooLong {
            what,
            value: value.chars().take(32).collect(),
            bytes: value.len(),
            bytes_max,
        });
    }
    match value.char_indices().find(|(_, c)| !accept(*c)) {
        Some((at, found)) => {
            Err(InvalidText::Character { what, value: value.chars().take(64).collect(), found, at, allowed })
        }
        None => Ok(()),
    }
}

/// Makes a type of validated names. Other crates use it as well, so that all names are checked and
/// refused in the same way.
#[doc(hidden)]
#[macro_export]
macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $bytes_max:expr, $allowed:literal, $accept:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// Checks the text and returns it as a name.
            ///
            /// # Errors
            /// [`InvalidText`]($crate::InvalidText) when it is empty, longer than the limit or
            /// holds a character that is not accepted.
            pub fn new(value: impl Into<std::sync::Arc<str>>) -> Result<Self, $crate::InvalidText> {
                let value = value.into();
                $crate::check_name($what, &value, $bytes_max, $allowed, $accept)?;
                Ok(Self(value))
            }

            /// Returns the text itself.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::InvalidText;
            fn from_str(value: &str) -> Result<Self, Self::Err> {
                Self::new(value)
            }
        }

        impl TryFrom<String> for $name {
            type Error = $crate::InvalidText;
            fn try_from(value: String) -> Result<Self, Self::Error> {
                Self::new(value)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = $crate::InvalidText;
            fn try_from(value: &str) -> Result<Self, Self::Error> {
                Self::new(value)
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.0.as_ref().to_owned()
            }
        }
    };
}

name!(
    /// The destination of a message: the Kafka topic, the RabbitMQ routing key, the SQS queue.
    ///
    /// 1 to 255 bytes of `A–Z a–z 0–9 . _ - / : #`; a broker may accept less and then refuses the
    /// topic by name.
    #[derive(Serialize, Deserialize)]
    #[serde(try_from = "String", into = "String")]
    Topic,
    "topic",
    TEXT_BYTES_MAX,
    "allowed are ASCII letters, digits and . _ - / : #",
    |c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | ':' | '#')
);

name!(
    /// Messages with the same ordering key are published in causal order: one aggregate, one
    /// account, one customer.
    ///
    /// 1 to 255 bytes, no control characters.
    #[derive(Serialize, Deserialize)]
    #[serde(try_from = "String", into = "String")]
    OrderingKey,
    "ordering key",
    TEXT_BYTES_MAX,
    "control characters are not allowed",
    |c| !c.is_control()
);

name!(
    /// The kind of event, as the CloudEvents `type` attribute: `order.placed`. 1 to 255 bytes, no
    /// control characters.
    #[derive(Serialize, Deserialize)]
    #[serde(try_from = "String", into = "String")]
    EventType,
    "event type",
    TEXT_BYTES_MAX,
    "control characters are not allowed",
    |c| !c.is_control()
);

name!(
    /// The outbox that a message comes from, as the CloudEvents `source` attribute, a URI
    /// reference: `/orders`. Source and id together identify a message. 1 to 255 bytes of printable
    /// ASCII without spaces.
    #[derive(Serialize, Deserialize)]
    #[serde(try_from = "String", into = "String")]
    Source,
    "source",
    TEXT_BYTES_MAX,
    "a URI reference has printable ASCII characters only and no spaces",
    |c| c.is_ascii_graphic()
);

name!(
    /// The media type of the payload (RFC 2046): `application/json`. 1 to 255 bytes of printable
    /// ASCII.
    #[derive(Serialize, Deserialize)]
    #[serde(try_from = "String", into = "String")]
    ContentType,
    "content type",
    TEXT_BYTES_MAX,
    "a media type has printable ASCII characters only",
    |c| c.is_ascii_graphic() || c == ' '
);

impl From<std::convert::Infallible> for InvalidText {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

impl ContentType {
    /// Returns `application/json`.
    #[must_use]
    pub fn json() -> Self {
        Self(Arc::from("application/json"))
    }

    /// Returns `application/octet-stream`.
    #[must_use]
    pub fn octets() -> Self {
        Self(Arc::from("application/octet-stream"))
    }

    /// Whether the payload is JSON: `…/json` or the structured suffix `+json` (RFC 6839),
    /// parameters ignored.
    #[must_use]
    pub fn is_json(&self) -> bool {
        let essence = self.0.split(';').next().unwrap_or_default().trim_end();
        essence.ends_with("/json") || essence.ends_with("+json")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_not_empty_and_fits_an_amqp_short_string() {
        assert_eq!(Topic::new(""), Err(InvalidText::Empty { what: "topic", bytes_max: TEXT_BYTES_MAX }));
        assert!(Topic::new("t".repeat(255)).is_ok());
        let error = OrderingKey::new("k".repeat(256)).unwrap_err().to_string();
        assert!(error.contains("256 bytes; the limit is 255"), "{error}");
    }

    #[test]
    fn line_breaks_and_nul_are_refused_with_their_place() {
        for bad in ["a\rb", "a\nb", "a\0b"] {
            let error = OrderingKey::new(bad).unwrap_err();
            assert!(matches!(error, InvalidText::Character { at: 1, .. }));
        }
    }

    #[test]
    fn a_decision_is_signed_and_its_note_is_bounded() {
        let longest = "n".repeat(NOTE_BYTES_MAX);
        assert_eq!(check_signature("ann", &longest), Ok(()));
        for (actor, note, expected) in [
            (" ", "x", "the actor of a decision is empty; give it 1 to 255 bytes"),
            ("ann", "\n", "the note of a decision is empty; give it 1 to 2000 bytes"),
            (&longest[..256], "x", "has 256 bytes; the limit is 255"),
            ("ann", &format!("{longest}n"), "has 2001 bytes; the limit is 2000"),
            (
                "ann",
                "a\0b",
                "the note of a decision \"a\\0b\" has the character '\\0' at byte 1; NUL is not allowed",
            ),
        ] {
            let error = check_signature(actor, note).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_json_suffix_counts_as_json() {
        assert!(ContentType::new("application/cloudevents+json; charset=utf-8").unwrap().is_json());
        assert!(!ContentType::new("text/plain").unwrap().is_json());
    }
}
