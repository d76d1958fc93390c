//! Free headers of a message, validated once so that every broker can carry them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::text::{InvalidText, TEXT_BYTES_MAX, check_name, check_optional};

/// The longest accepted header value in bytes. W3C baggage asks implementations to carry 8,192
/// bytes.
pub const HEADER_VALUE_BYTES_MAX: usize = 8_192;

/// The maximum number of headers of a message. It bounds the memory for a row written with plain
/// SQL: while it is parsed, a header of a few bytes uses more than a hundred.
pub const HEADERS_MAX: usize = 1_000;

/// Names that the envelope itself uses on the wire; case is ignored.
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

/// The free headers of a message, sorted by name; a name occurs once. At most [`HEADERS_MAX`].
///
/// All texts are stored in one string, so a header uses little more memory than its bytes. Clones
/// share it until one is changed.
#[derive(Clone, Default)]
pub struct Headers {
    /// `None`: there are no headers.
    stored: Option<Arc<Stored>>,
}

#[derive(Clone, Default)]
struct Stored {
    text: String,
    /// Sorted by names.
    places: Vec<Place>,
}

/// The position of a header in the text: its name, followed by its value.
#[derive(Clone, Copy)]
struct Place {
    from: usize,
    name_end: usize,
    end: usize,
}

impl HeaderName {
    /// Whether the envelope itself uses this name, ignoring case. Such a name is never a free
    /// header.
    #[must_use]
    pub fn is_reserved(value: &str) -> bool {
        let lower = value.to_ascii_lowercase();
        RESERVED.contains(&lower.as_str()) || RESERVED_PREFIXES.iter().any(|prefix| lower.starts_with(prefix))
    }

    /// Checks the text and returns it as a name.
    ///
    /// # Errors
    /// [`InvalidText`]: empty, over 255 bytes, a character outside the set, or reserved for the
    /// envelope.
    pub fn new(value: impl Into<String>) -> Result<Self, InvalidText> {
        let value = value.into();
        check_name(
            "header name",
            &value,
            TEXT_BYTES_MAX,
            "allowed are ASCII letters, digits and - _ .",
            |c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'),
        )?;
        if Self::is_reserved(&value) {
            return Err(InvalidText::Reserved { what: "header name", value });
        }
        Ok(Self(value))
    }

    /// Returns the text itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl HeaderValue {
    /// Checks the text and returns it as a value. The empty value is accepted.
    ///
    /// # Errors
    /// [`InvalidText`]: over [`HEADER_VALUE_BYTES_MAX`] bytes, or a control character (CR, LF, NUL,
    /// …).
    pub fn new(value: impl Into<String>) -> Result<Self, InvalidText> {
        let value = value.into();
        // The error has length and position, but not the value: headers can contain tokens.
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

    /// Returns the text itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for HeaderValue {
    /// Prints the length only: headers can contain tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} bytes>", self.0.len())
    }
}

impl Headers {
    /// Makes an empty set of headers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets one header, replacing the value that the name had.
    ///
    /// # Errors
    /// [`InvalidText`] as for [`HeaderName::new`] and [`HeaderValue::new`], or
    /// [`InvalidText::TooMany`] for a new name above [`HEADERS_MAX`]; nothing is changed then.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<String>) -> Result<(), InvalidText> {
        let (name, value) = (HeaderName::new(name)?, HeaderValue::new(value)?);
        match self.find(name.as_str()) {
            Ok(_) => {
                let replaced = |(n, v)| (n, if n == name.as_str() { value.as_str() } else { v });
                *self = Self::of(self.iter().map(replaced));
            }
            Err(_) if self.len() >= HEADERS_MAX => return Err(too_many()),
            Err(at) => self.add(at, name.as_str(), value.as_str()),
        }
        Ok(())
    }

    /// Removes a header. Returns whether it was there.
    pub fn remove(&mut self, name: &str) -> bool {
        let is_there = self.find(name).is_ok();
        if is_there {
            *self = Self::of(self.iter().filter(|(known, _)| *known != name));
        }
        is_there
    }

    /// Sets a header of a foreign producer unless its name has a value. One that breaks our rules,
    /// or is above [`HEADERS_MAX`], is left out. Unlike [`insert`](Self::insert), it costs little
    /// for a name that is there: a delivery can repeat one as often as its sender likes.
    pub(crate) fn insert_first(&mut self, name: &str, value: &str) {
        let Err(at) = self.find(name) else { return };
        let is_valid =
            self.len() < HEADERS_MAX && HeaderName::new(name).is_ok() && HeaderValue::new(value).is_ok();
        if is_valid {
            self.add(at, name, value);
        }
    }

    /// Returns the index of a name, or the one at which it would be inserted.
    fn find(&self, name: &str) -> Result<usize, usize> {
        let Some(stored) = &self.stored else { return Err(0) };
        stored.places.binary_search_by(|place| stored.read(place).0.cmp(name))
    }

    /// Inserts a header at index `at` of the sorted names.
    fn add(&mut self, at: usize, name: &str, value: &str) {
        let stored = Arc::make_mut(self.stored.get_or_insert_default());
        let from = stored.text.len();
        let name_end = from + name.len();
        stored.text.push_str(name);
        stored.text.push_str(value);
        stored.places.insert(at, Place { from, name_end, end: name_end + value.len() });
    }

    /// Builds headers from names in ascending order.
    fn of<'a>(sorted: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut headers = Self::new();
        for (name, value) in sorted {
            headers.add(headers.len(), name, value);
        }
        headers
    }

    /// Returns the value of a header.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let stored = self.stored.as_deref()?;
        let place = stored.places.get(self.find(name).ok()?)?;
        Some(stored.read(place).1)
    }

    /// Returns all headers, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.stored.iter().flat_map(|stored| stored.places.iter().map(move |place| stored.read(place)))
    }

    /// Returns the number of headers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.stored.as_ref().map_or(0, |stored| stored.places.len())
    }

    /// Whether there are no headers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the length of all names and values, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.stored.as_ref().map_or(0, |stored| stored.text.len())
    }
}

impl Stored {
    fn read(&self, place: &Place) -> (&str, &str) {
        (&self.text[place.from..place.name_end], &self.text[place.name_end..place.end])
    }
}

fn too_many() -> InvalidText {
    InvalidText::TooMany { what: "header", count_max: HEADERS_MAX }
}

impl PartialEq for Headers {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Headers {}

impl fmt::Debug for Headers {
    /// Prints names and the lengths of values: headers can contain tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (name, value) in self.iter() {
            map.entry(&name, &format_args!("<{} bytes>", value.len()));
        }
        map.finish()
    }
}

impl Serialize for Headers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Headers {
    /// Stops at the first header above the limit, so that the others use no memory.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Headers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Headers, A::Error> {
                let mut headers: BTreeMap<HeaderName, HeaderValue> = BTreeMap::new();
                while let Some((name, value)) = map.next_entry()? {
                    headers.insert(name, value);
                    if headers.len() > HEADERS_MAX {
                        return Err(de::Error::custom(too_many()));
                    }
                }
                Ok(Headers::of(headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))))
            }
        }

        deserializer.deserialize_map(Read)
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
    fn a_thousand_names_are_taken() {
        let mut headers = Headers::new();
        for n in 0..HEADERS_MAX {
            headers.insert(format!("h{n}"), "").unwrap();
        }
        headers.insert("h0", "again").unwrap();
        assert_eq!((headers.len(), headers.get("h0"), headers.get("h999")), (1_000, Some("again"), Some("")));
        assert_eq!(
            headers.bytes(),
            headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
        );
        assert!(headers.iter().map(|(name, _)| name).is_sorted());
        let error = headers.insert("one-more", "").unwrap_err();
        assert_eq!(error.to_string(), "there are more than 1000 headers; put the rest into the payload");
    }

    #[test]
    fn the_first_valid_value_of_a_foreign_name_counts_and_the_first_names_are_kept() {
        let mut headers = Headers::new();
        headers.insert_first("tenant", "a\nb");
        for n in 0..2 * HEADERS_MAX {
            headers.insert_first("tenant", &n.to_string());
            headers.insert_first(&format!("h{n}"), "1");
        }
        for name in ["content-type", "ce_id", "a b", ""] {
            headers.insert_first(name, "1");
        }
        assert_eq!((headers.len(), headers.get("tenant")), (HEADERS_MAX, Some("0")));
        assert_eq!((headers.get("h998"), headers.get("h999")), (Some("1"), None));
    }

    #[test]
    fn clones_share_their_texts_until_one_is_changed() {
        let mut headers = Headers::new();
        headers.insert("tenant", "acme").unwrap();
        let mut clone = headers.clone();
        let at = |headers: &Headers| headers.get("tenant").unwrap().as_ptr();
        assert_eq!(at(&headers), at(&clone));
        clone.insert("tenant", "other").unwrap();
        clone.insert("note", "1").unwrap();
        assert_eq!((headers.get("tenant"), headers.len()), (Some("acme"), 1));
        assert_eq!((clone.get("tenant"), clone.len()), (Some("other"), 2));
    }

    #[test]
    fn names_have_1_to_255_bytes() {
        assert!(HeaderName::new("").is_err());
        assert!(HeaderName::new("h".repeat(255)).is_ok());
        assert!(HeaderName::new("h".repeat(256)).is_err());
    }
}
