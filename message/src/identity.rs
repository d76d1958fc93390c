//! Compares a message with the one that is stored under its id.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::fingerprint::Fingerprint;
use crate::id::MessageId;
use crate::message::Message;
use crate::text::Topic;

/// A part in which a message differs from the one that was enqueued before under its id.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// The kind, the content type or the payload.
    Content,
    /// The topic.
    Topic,
    /// The ordering key.
    Key,
    /// The header with this name: only one of the two messages has it, or its values differ.
    Header(String),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Content => f.write_str("kind, content type or payload"),
            Self::Topic => f.write_str("topic"),
            Self::Key => f.write_str("key"),
            Self::Header(name) => write!(f, "header {name}"),
        }
    }
}

/// Maximum number of differences in one text.
const SHOWN_MAX: usize = 4;

/// Another message was enqueued before under this id: its kind, content type, payload, topic, key
/// or a header differs. An outbox publishes one message under an id, so this one would be lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "message id {id} for topic {topic} was already enqueued with another {}; one id names one message: derive \
     it from everything that defines the message, or use a new id",
    list_differences(.differs)
)]
pub struct IdReused {
    /// The id.
    pub id: MessageId,
    /// The topic of the refused message.
    pub topic: Topic,
    /// The parts that differ.
    pub differs: Vec<Difference>,
}

/// Lists differences for an error text.
fn list_differences(differences: &[Difference]) -> String {
    let shown: Vec<String> = differences.iter().take(SHOWN_MAX).map(ToString::to_string).collect();
    let more = if differences.len() > SHOWN_MAX { ", …" } else { "" };
    format!("{}{more}", shown.join(" and another "))
}

/// Names of headers that belong to a call and not to the fact that it reports: tracing and HTTP
/// clients set new values when a command is repeated. `*` stands for any ending.
const VARYING: [&str; 12] = [
    "b3",
    "baggage",
    "correlation-id",
    "request-id",
    "sentry-trace",
    "uber-trace-id",
    "x-amzn-trace-id",
    "x-b3-*",
    "x-cloud-trace-context",
    "x-correlation-id",
    "x-datadog-*",
    "x-request-id",
];

/// The headers that are not compared.
#[doc(hidden)]
#[derive(Debug, Clone, Default)]
pub struct VaryingHeaders(BTreeSet<String>);

impl VaryingHeaders {
    /// Adds a name. Case is ignored.
    pub fn add(&mut self, name: &str) {
        self.0.insert(name.to_ascii_lowercase());
    }

    fn has(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let is_known = |known: &str| match known.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == known,
        };
        VARYING.into_iter().any(is_known) || self.0.contains(&name)
    }
}

/// A message as it is stored under its id, in the form that a producer may read: digests instead of
/// contents.
#[doc(hidden)]
#[derive(Debug)]
pub struct Stored {
    /// The id.
    pub id: MessageId,
    /// The fingerprint of the message.
    pub fingerprint: Fingerprint,
    /// The topic.
    pub topic: String,
    /// The ordering key.
    pub key: Option<String>,
    /// The digest of each header, by its name.
    pub headers: BTreeMap<String, Fingerprint>,
}

impl Stored {
    /// Returns the same for a message that is not stored yet.
    #[must_use]
    pub fn of(message: &Message) -> Self {
        let headers = message.headers.iter().map(|(name, value)| (name.to_owned(), digest(name, value)));
        Self {
            id: message.id,
            fingerprint: Fingerprint::of(message),
            topic: message.topic.to_string(),
            key: message.key.as_ref().map(ToString::to_string),
            headers: headers.collect(),
        }
    }

    /// Checks that a message under this id is the stored one.
    ///
    /// # Errors
    /// [`IdReused`] with the parts in which it [differs](Self::differences).
    pub fn check(&self, message: &Message, varying: &VaryingHeaders) -> Result<(), IdReused> {
        let differs = self.differences(message, varying);
        if differs.is_empty() {
            return Ok(());
        }
        Err(IdReused { id: message.id, topic: message.topic.clone(), differs })
    }

    /// Returns the parts in which a message differs. Its trace context and its time of delivery are
    /// ignored, because a repeated command has different ones.
    #[must_use]
    pub fn differences(&self, message: &Message, varying: &VaryingHeaders) -> Vec<Difference> {
        let other = Self::of(message);
        let parts = [
            (Difference::Content, self.fingerprint != other.fingerprint),
            (Difference::Topic, self.topic != other.topic),
            (Difference::Key, self.key != other.key),
        ];
        let parts = parts.into_iter().filter(|(_, differs)| *differs).map(|(part, _)| part);
        let names: BTreeSet<&String> = self.headers.keys().chain(other.headers.keys()).collect();
        let names = names.into_iter().filter(|name| self.headers.get(*name) != other.headers.get(*name));
        let headers = names.filter(|name| !varying.has(name)).cloned().map(Difference::Header);
        parts.chain(headers).collect()
    }
}

/// Returns the digest of a header. On PostgreSQL the function `outbox_stored` makes the same.
#[doc(hidden)]
#[must_use]
pub fn digest(name: &str, value: &str) -> Fingerprint {
    Fingerprint::of_parts(name, "", value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EventType, Headers, OrderingKey, Topic};

    fn message(topic: &str, key: Option<&str>, headers: &[(&str, &str)]) -> Message {
        let mut message = Message::new(Topic::new(topic).unwrap(), EventType::new("placed").unwrap(), "7");
        message.key = key.map(|key| OrderingKey::new(key).unwrap());
        message.headers = Headers::new();
        for (name, value) in headers {
            message.headers.insert(*name, *value).unwrap();
        }
        message
    }

    #[test]
    fn every_part_of_the_fact_counts_and_nothing_of_the_call() {
        let stored = Stored::of(&message("orders", Some("7"), &[("tenant", "a"), ("X-Request-Id", "1")]));
        let differences = |topic, key, headers: &[(&str, &str)]| {
            let mut varying = VaryingHeaders::default();
            varying.add("Attempt");
            list_differences(&stored.differences(&message(topic, key, headers), &varying))
        };
        assert_eq!(differences("orders", Some("7"), &[("tenant", "a")]), "");
        let repeated = [("tenant", "a"), ("attempt", "2"), ("x-b3-traceid", "3"), ("X-Request-Id", "2")];
        assert_eq!(differences("orders", Some("7"), &repeated), "");
        assert_eq!(differences("bills", Some("7"), &[("tenant", "a")]), "topic");
        assert_eq!(differences("orders", None, &[("tenant", "b")]), "key and another header tenant");
        assert_eq!(differences("orders", Some("7"), &[]), "header tenant");
    }

    #[test]
    fn a_text_lists_few_differences() {
        let many: Vec<_> = (0..1_000).map(|n| Difference::Header(n.to_string())).collect();
        let text = list_differences(&many);
        assert!(text.ends_with("header 3, …"), "{text}");
    }
}
