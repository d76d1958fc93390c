//! Facts of a delivery beyond its texts: its time, its key as bytes, the types of its headers, and
//! whether it has a value at all.

use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::subscription::Malformed;
use crate::text::{OrderingKey, TEXT_BYTES_MAX};

/// The properties with the bytes of a header, by broker; the header's name follows.
const BYTES: [&str; 3] = ["kafka.header_hex.", "amqp.header_hex.", "sqs.attribute_hex."];

/// The properties with the type of a header, by broker; the header's name follows.
const TYPES: [&str; 3] = ["amqp.header_type.", "sqs.attribute_type.", "sns.attribute_type."];

/// Marks a character that was not text, in a header whose bytes are in a property.
const REPLACEMENT: char = '\u{FFFD}';

/// Returns whether a [property](Malformed::properties) is the time at which a broker got a message
/// or its producer sent it.
fn is_timestamp(name: &str) -> bool {
    name == "sqs.SentTimestamp" || name.split_once('.').is_some_and(|(_, rest)| rest == "timestamp")
}

impl Malformed {
    /// Returns the first header with this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the first property with this name.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&str> {
        self.properties.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the bytes of the first header with this name, also where they are not text (Kafka,
    /// AMQP byte arrays, SQS attributes of the type `Binary`). `None` for a header without a value.
    #[must_use]
    pub fn header_bytes(&self, name: &str) -> Option<Vec<u8>> {
        if self.property(&format!("kafka.header_null.{name}")).is_some() {
            return None;
        }
        let text = self.header(name);
        if text.is_none_or(|text| text.contains(REPLACEMENT))
            && let Some(hex) = of_name(self, &BYTES, name)
        {
            return unhex(hex);
        }
        let text = text?;
        // The text of an AMQP byte array is a JSON string with its bytes in hexadecimal.
        if self.property(&format!("amqp.header_type.{name}")) == Some("bytes") {
            return unhex(text.trim_matches('"'));
        }
        Some(text.as_bytes().to_vec())
    }

    /// Returns the type of a header as its broker names it: `int32` or `table` (AMQP), `Number` or
    /// `Binary` (SQS, SNS), `bytes` or `null` (Kafka); `text` for any other header, and `None` if
    /// there is no such header.
    #[must_use]
    pub fn header_type(&self, name: &str) -> Option<&str> {
        if let Some(known) = of_name(self, &TYPES, name) {
            return Some(known);
        }
        if self.property(&format!("kafka.header_null.{name}")).is_some() {
            return Some("null");
        }
        let text = self.header(name);
        if text.is_none_or(|text| text.contains(REPLACEMENT)) && of_name(self, &BYTES, name).is_some() {
            return Some("bytes");
        }
        text.map(|_| "text")
    }

    /// Returns the time of the delivery that every redelivery repeats: the timestamp of the record
    /// (Kafka), the time at which the message was sent (SQS), or the property `timestamp`, if its
    /// producer has set it (RabbitMQ, to the second).
    #[must_use]
    pub fn timestamp(&self) -> Option<OffsetDateTime> {
        let time = self.properties.iter().find(|(name, _)| is_timestamp(name));
        OffsetDateTime::parse(&time?.1, &Rfc3339).ok()
    }

    /// Returns the key as the producer sent it: the key of the record (Kafka), which need not be
    /// text, or the message group (SQS).
    #[must_use]
    pub fn raw_key(&self) -> Option<Vec<u8>> {
        if let Some(hex) = self.property("kafka.key_hex") {
            return unhex(hex);
        }
        let text = self.key.as_deref().or_else(|| self.property("sqs.MessageGroupId"))?;
        Some(text.as_bytes().to_vec())
    }

    /// Returns whether the record has no value (Kafka): in a compacted topic, it deletes its key.
    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        self.property("kafka.value") == Some("null")
    }

    /// Returns whether the record has a value, even an empty one; `false` for a broker that does
    /// not distinguish the two.
    pub(crate) fn has_value(&self) -> bool {
        !self.is_tombstone() && self.properties.iter().any(|(name, _)| name.starts_with("kafka."))
    }

    /// Returns an ordering key for [`raw_key`](Self::raw_key): the key itself where it is a valid
    /// one. Otherwise it is made of its bytes, so that equal keys stay equal and others differ:
    /// `hex:00ff`, or `sha256:…` for more than 125 bytes. `None` without a key, and for an empty
    /// one.
    #[must_use]
    pub fn ordering_key(&self) -> Option<OrderingKey> {
        ordering_key(&self.raw_key()?)
    }
}

/// Returns the ordering key of these bytes; see [`Malformed::ordering_key`].
pub(crate) fn ordering_key(raw: &[u8]) -> Option<OrderingKey> {
    if raw.is_empty() {
        return None;
    }
    let text = std::str::from_utf8(raw).ok().and_then(|text| OrderingKey::new(text).ok());
    text.or_else(|| {
        let text = format!("hex:{}", hex(raw));
        let text =
            if text.len() > TEXT_BYTES_MAX { format!("sha256:{}", hex(&Sha256::digest(raw))) } else { text };
        OrderingKey::new(text).ok()
    })
}

/// Returns the first property with one of these prefixes before the name of a header.
fn of_name<'a>(malformed: &'a Malformed, prefixes: &[&str], name: &str) -> Option<&'a str> {
    let is_it = |known: &str| prefixes.iter().any(|prefix| known.strip_prefix(prefix) == Some(name));
    malformed.properties.iter().find(|(known, _)| is_it(known)).map(|(_, value)| value.as_str())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes of a text in hexadecimal; `None` for any other text.
fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn a_time_that_no_broker_gave_is_none() {
        assert_eq!(Malformed::default().timestamp(), None);
        let unreadable =
            Malformed { properties: vec![pair("amqp.timestamp", "soon")], ..Malformed::default() };
        assert_eq!(unreadable.timestamp(), None);
    }

    #[test]
    fn headers_have_types_and_bytes() {
        let malformed = Malformed {
            headers: vec![
                pair("tenant", "acme"),
                pair("attempt", "3"),
                pair("list", "[1,true]"),
                pair("raw", "\"00ff\""),
                pair("schema", "\0\u{FFFD}"),
                pair("gone", ""),
            ],
            properties: vec![
                pair("amqp.header_type.attempt", "int32"),
                pair("amqp.header_type.list", "array"),
                pair("amqp.header_type.raw", "bytes"),
                pair("kafka.header_hex.schema", "00ff"),
                pair("kafka.header_null.gone", ""),
                pair("sqs.attribute_type.blob", "Binary.png"),
                pair("sqs.attribute_hex.blob", "8950"),
            ],
            ..Malformed::default()
        };
        for (name, kind, bytes) in [
            ("tenant", Some("text"), Some(&b"acme"[..])),
            ("attempt", Some("int32"), Some(b"3")),
            ("list", Some("array"), Some(b"[1,true]")),
            ("raw", Some("bytes"), Some(&[0, 255])),
            ("schema", Some("bytes"), Some(&[0, 255])),
            ("gone", Some("null"), None),
            ("blob", Some("Binary.png"), Some(&[0x89, 0x50])),
            ("absent", None, None),
        ] {
            assert_eq!(malformed.header_type(name), kind, "{name}");
            assert_eq!(malformed.header_bytes(name).as_deref(), bytes, "{name}");
        }
    }

    #[test]
    fn keys_that_are_no_valid_text_still_order_and_stay_apart() {
        let of_hex = |text: &str| {
            let malformed =
                Malformed { properties: vec![pair("kafka.key_hex", text)], ..Malformed::default() };
            malformed.ordering_key().map(|key| key.as_str().to_owned())
        };
        assert_eq!(of_hex("00000000000000ff").as_deref(), Some("hex:00000000000000ff"));
        assert_eq!(of_hex("00000000000000ff"), of_hex("00000000000000ff"));
        assert_ne!(of_hex("00000000000000ff"), of_hex("00000000000000fe"));
        let long = |last: &str| of_hex(&format!("{}{last}", "ff".repeat(300)));
        assert!(long("ff").unwrap().starts_with("sha256:"));
        assert_ne!(long("ff"), long("fe"));
        let of_text = |text: &str| {
            let malformed = Malformed { key: Some(text.to_owned()), ..Malformed::default() };
            malformed.ordering_key().map(|key| key.as_str().to_owned())
        };
        assert_eq!(of_text("order-7").as_deref(), Some("order-7"));
        assert_eq!(of_text("a\nb").as_deref(), Some("hex:610a62"));
        assert!(of_text(&"k".repeat(300)).unwrap().starts_with("sha256:"));
        assert_eq!(of_text(""), None);
        let group = Malformed { properties: vec![pair("sqs.MessageGroupId", "g")], ..Malformed::default() };
        assert_eq!(group.ordering_key().unwrap().as_str(), "g");
    }
}
