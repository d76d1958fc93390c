//! Conversion between messages and the attributes of CloudEvents 1.0.2
//! (<https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md>).
//!
//! The bindings of the brokers differ only in how they spell a name (`ce_id`, `cloudEvents_id`).
//! They write with [`attributes`] and read with [`Envelope`]. `datacontenttype` travels as the
//! broker's own content type, the key as `subject` and as the broker's own key, and the trace
//! context as plain W3C headers.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::chunk::Chunk;
use crate::header::Headers;
use crate::id::MessageId;
use crate::message::Message;
use crate::subscription::Malformed;
use crate::text::{ContentType, EventType, OrderingKey, Source, Topic};
use crate::trace::TraceContext;

/// The specification version that is written. Any `1.x` is accepted.
const SPEC_VERSION: &str = "1.0";

/// The attributes that a message is read from. Every other attribute becomes a header, except the
/// extensions of [`CHUNK_ATTRIBUTES`](crate::CHUNK_ATTRIBUTES).
const ATTRIBUTES: [&str; 7] = ["specversion", "id", "source", "type", "time", "subject", "datacontenttype"];

/// Returns whether a CloudEvents attribute is part of a message, and not a header.
#[must_use]
pub fn is_attribute(name: &str) -> bool {
    ATTRIBUTES.contains(&name) || crate::chunk::CHUNK_ATTRIBUTES.contains(&name)
}

/// Returns the attributes of a message without the prefix of a binding: `specversion`, `id`,
/// `source`, `type`, `time` and, with a key, `subject`. A chunk also has the extensions of
/// [`crate::CHUNK_ATTRIBUTES`].
pub fn attributes(message: &Message) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
    let key = message.key.as_ref().map(|key| ("subject", Cow::Borrowed(key.as_str())));
    [
        ("specversion", Cow::Borrowed(SPEC_VERSION)),
        ("id", Cow::Owned(message.id.to_string())),
        ("source", Cow::Borrowed(message.source.as_str())),
        ("type", Cow::Borrowed(message.kind.as_str())),
        ("time", Cow::Owned(format_time(message.time))),
    ]
    .into_iter()
    .chain(key)
    .chain(message.chunk.iter().flat_map(|chunk| chunk.attributes()))
}

/// Returns the W3C headers of a message, `traceparent` and `tracestate`, where present.
pub fn trace_headers(message: &Message) -> impl Iterator<Item = (&str, &str)> {
    message.trace.iter().flat_map(|trace| {
        [("traceparent", Some(trace.parent())), ("tracestate", trace.state())]
            .into_iter()
            .filter_map(|(name, value)| value.map(|value| (name, value)))
    })
}

/// Formats a time as RFC 3339 in UTC; empty outside the years 0 to 9999.
#[must_use]
pub fn format_time(at: OffsetDateTime) -> String {
    in_utc(at).and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default()
}

/// Formats milliseconds since 1970 as RFC 3339 in UTC, or as the number where RFC 3339 cannot.
#[must_use]
pub fn format_unix_ms(at_ms: i64) -> String {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at_ms) * 1_000_000).ok();
    at.map(format_time).filter(|text| !text.is_empty()).unwrap_or_else(|| at_ms.to_string())
}

/// Returns the same time in UTC; `None` outside the years 0 to 9999, the range of RFC 3339.
pub(crate) fn in_utc(at: OffsetDateTime) -> Option<OffsetDateTime> {
    at.checked_to_offset(time::UtcOffset::UTC).filter(|at| (0..=9999).contains(&at.year()))
}

/// Returns the first characters of a text from outside, for an error message.
pub(crate) fn beginning(text: &str) -> String {
    text.chars().take(64).collect()
}

/// The parts of a message that a binding has read from the wire, before they are checked.
#[derive(Default, Clone)]
pub struct Envelope {
    /// The topic or queue that it came from.
    pub topic: String,
    /// The broker's own message id property, where it has one (AMQP `message_id`). Used when there
    /// is no `ce id`.
    pub message_id: Option<String>,
    /// The broker's own ordering key. It wins over `ce subject`: the broker orders by this key, so
    /// messages that share it must not be handled in parallel because their subjects differ.
    pub key: Option<String>,
    /// The broker's own content type; used when `ce datacontenttype` is missing.
    pub content_type: Option<String>,
    /// CloudEvents attributes without the binding's prefix.
    pub attributes: Vec<(String, String)>,
    /// All other headers, `traceparent` and `tracestate` among them.
    pub headers: Vec<(String, String)>,
    /// The payload.
    pub payload: Bytes,
}

impl fmt::Debug for Envelope {
    /// Prints the size of the payload and the names of headers: only the consumer should read more.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envelope")
            .field("topic", &self.topic)
            .field("message_id", &self.message_id)
            .field("key", &self.key)
            .field("content_type", &self.content_type)
            .field("attributes", &self.attributes)
            .field("headers", &self.headers.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("payload", &format_args!("<{} bytes>", self.payload.len()))
            .finish()
    }
}

impl Envelope {
    /// Sorts one wire header into attributes or free headers. `prefixes` are the binding's
    /// spellings of the CloudEvents prefix (`ce_`; `cloudEvents_` and `cloudEvents:`). The first of
    /// several headers with one name counts.
    pub fn push_header(&mut self, prefixes: &[&str], name: &str, value: String) {
        match prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)) {
            Some(attribute) => self.attributes.push((attribute.to_owned(), value)),
            None => self.headers.push((name.to_owned(), value)),
        }
    }

    /// Checks all parts and builds the message.
    ///
    /// A missing `source`, `type`, `time` or content type is replaced (`/unknown`, the topic, the
    /// id's own time, `application/octet-stream`): foreign producers may not send them. Free
    /// headers that break our rules and an invalid trace context are dropped: they carry no
    /// identity.
    ///
    /// # Errors
    /// [`Malformed`] when there is no id, or an id, topic, key or attribute is invalid. It holds
    /// the original headers and bytes.
    pub fn open(self) -> Result<Message, Box<Malformed>> {
        match self.read() {
            Ok(message) => Ok(message),
            Err(problem) => Err(Box::new(self.into_malformed(problem))),
        }
    }

    /// Turns the envelope into evidence of the problem.
    #[must_use]
    pub fn into_malformed(self, problem: String) -> Malformed {
        let attributes = self.attributes.into_iter().map(|(name, value)| (format!("ce_{name}"), value));
        let id = self.message_id.map(|id| (String::from("message-id"), id));
        let content_type = self.content_type.map(|text| (String::from("content-type"), text));
        Malformed {
            problem,
            topic: self.topic,
            key: self.key,
            headers: id.into_iter().chain(content_type).chain(attributes).chain(self.headers).collect(),
            payload: self.payload,
            ..Malformed::default()
        }
    }

    fn read(&self) -> Result<Message, String> {
        let text = |error: crate::text::InvalidText| error.to_string();
        if let Some(version) = self.attribute("specversion")
            && !version.starts_with("1.")
        {
            return Err(format!(
                "CloudEvents specversion {:?} is not supported; send 1.0",
                beginning(version)
            ));
        }
        let mut ids = self.attributes.iter().filter(|(name, _)| name == "id").map(|(_, id)| id.as_str());
        let id = ids.next();
        if let Some((id, other)) = id.zip(ids.find(|other| Some(*other) != id)) {
            return Err(format!(
                "the message has two ids, {:?} and {:?}; send one",
                beginning(id),
                beginning(other)
            ));
        }
        let id: MessageId = id
            .or(self.message_id.as_deref())
            .ok_or("the message has no id; send ce_id (CloudEvents) or the broker's message id")?
            .parse()
            .map_err(|error: crate::id::InvalidId| error.to_string())?;
        let key = [self.key.as_deref(), self.attribute("subject")]
            .into_iter()
            .flatten()
            .find(|key| !key.is_empty())
            .map(OrderingKey::new)
            .transpose()
            .map_err(text)?;
        let time = match self.attribute("time") {
            Some(time) => OffsetDateTime::parse(time, &Rfc3339)
                .ok()
                .and_then(in_utc)
                .ok_or_else(|| format!("CloudEvents time {:?} is not RFC 3339", beginning(time)))?,
            None => id.generated_at(),
        };
        let content_type = match self.attribute("datacontenttype").or(self.content_type.as_deref()) {
            Some(content_type) => ContentType::new(content_type).map_err(text)?,
            None => ContentType::octets(),
        };
        let chunk = Chunk::read(|name| self.attribute(name), self.payload.len())
            .map_err(|error| error.to_string())?;
        Ok(Message {
            id,
            topic: Topic::new(self.topic.as_str()).map_err(text)?,
            key,
            kind: EventType::new(self.attribute("type").unwrap_or(&self.topic)).map_err(text)?,
            source: Source::new(self.attribute("source").unwrap_or("/unknown")).map_err(text)?,
            time,
            content_type,
            headers: self.free_headers(),
            trace: self.trace(),
            payload: self.payload.clone(),
            chunk: chunk.map(Box::new),
        })
    }

    fn attribute(&self, name: &str) -> Option<&str> {
        find(&self.attributes, name)
    }

    fn free_headers(&self) -> Headers {
        let mut headers = Headers::new();
        for (name, value) in &self.headers {
            // Dropping a foreign header that breaks our rules is safe: it carries no identity.
            headers.insert_first(name, value);
        }
        // Extension attributes, which the structured form has beside the free headers.
        for (name, value) in self.attributes.iter().filter(|(name, _)| !is_attribute(name)) {
            headers.insert_first(name, value);
        }
        headers
    }

    fn trace(&self) -> Option<TraceContext> {
        let header = |name| find(&self.headers, name).or_else(|| self.attribute(name));
        let state = header("tracestate").map(str::to_owned);
        TraceContext::new(header("traceparent")?, state).ok()
    }
}

fn find<'a>(pairs: &'a [(String, String)], name: &str) -> Option<&'a str> {
    pairs.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Message {
        let mut message = Message::new(
            Topic::new("orders").unwrap(),
            EventType::new("order.placed").unwrap(),
            r#"{"total":12}"#,
        )
        .with_key(OrderingKey::new("order-7").unwrap())
        .with_content_type(ContentType::json());
        message.headers.insert("tenant", "acme").unwrap();
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        message.trace = Some(TraceContext::new(parent, Some("a=b".into())).unwrap());
        message
    }

    #[test]
    fn what_is_written_is_read_as_an_attribute() {
        let message = sample();
        assert!(attributes(&message).all(|(name, _)| is_attribute(name)));
    }

    fn on_the_wire(message: &Message) -> Envelope {
        let mut envelope = Envelope {
            topic: message.topic.to_string(),
            content_type: Some(message.content_type.to_string()),
            payload: message.payload.clone(),
            ..Envelope::default()
        };
        for (name, value) in attributes(message) {
            envelope.push_header(&["ce_"], &format!("ce_{name}"), value.into_owned());
        }
        for (name, value) in message.headers.iter().chain(trace_headers(message)) {
            envelope.push_header(&["ce_"], name, value.to_owned());
        }
        envelope
    }

    #[test]
    fn a_message_survives_the_wire() {
        let message = sample();
        assert_eq!(on_the_wire(&message).open().unwrap(), message);
    }

    #[test]
    fn a_message_without_an_id_keeps_its_evidence() {
        let mut envelope = on_the_wire(&sample());
        envelope.attributes.retain(|(name, _)| name != "id");
        let malformed = envelope.open().unwrap_err();
        assert!(malformed.problem.contains("no id"), "{}", malformed.problem);
        assert!(
            malformed.headers.contains(&(String::from("content-type"), String::from("application/json")))
        );
        assert!(malformed.headers.iter().any(|(name, _)| name == "tenant"));
        assert_eq!(&malformed.payload[..], br#"{"total":12}"#);
    }

    #[test]
    fn a_malformed_id_is_named() {
        let mut envelope = on_the_wire(&sample());
        envelope.attributes.retain(|(name, _)| name != "id");
        envelope.message_id = Some(String::from("order-7-placed"));
        assert!(envelope.open().unwrap_err().problem.contains("order-7-placed"));
    }

    #[test]
    fn a_time_that_utc_cannot_write_is_refused() {
        for time in ["9999-12-31T23:59:59-01:00", "0000-01-01T00:00:00+01:00", "yesterday"] {
            let mut envelope = on_the_wire(&sample());
            envelope.attributes.retain(|(name, _)| name != "time");
            envelope.attributes.push((String::from("time"), time.to_owned()));
            assert!(envelope.open().unwrap_err().problem.contains(time), "{time}");
        }
    }

    #[test]
    fn any_number_of_milliseconds_has_a_text() {
        assert_eq!(format_unix_ms(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        assert_eq!(format_unix_ms(-1), "1969-12-31T23:59:59.999Z");
        assert_eq!(format_unix_ms(i64::MAX), i64::MAX.to_string());
    }

    #[test]
    fn a_refusal_quotes_the_beginning_only() {
        for name in ["specversion", "time", "id"] {
            let mut envelope = on_the_wire(&sample());
            envelope.attributes.retain(|(known, _)| known != name);
            envelope.attributes.push((name.to_owned(), "x".repeat(100_000)));
            let problem = envelope.open().unwrap_err().problem;
            assert!(problem.contains("xxx") && problem.len() < 500, "{name}: {} bytes", problem.len());
        }
    }

    #[test]
    fn the_brokers_own_key_wins_over_the_subject() {
        for (key, subject, expected) in [
            (Some("k"), Some("s"), Some("k")),
            (Some("k"), None, Some("k")),
            (Some(""), Some("s"), Some("s")),
            (None, Some("s"), Some("s")),
            (None, Some(""), None),
            (None, None, None),
        ] {
            let mut envelope = on_the_wire(&sample());
            envelope.attributes.retain(|(name, _)| name != "subject");
            envelope.attributes.extend(subject.map(|text| (String::from("subject"), text.to_owned())));
            envelope.key = key.map(str::to_owned);
            let message = envelope.open().unwrap();
            let found = message.key.as_ref().map(OrderingKey::as_str);
            assert_eq!(found, expected, "key {key:?}, subject {subject:?}");
        }
    }

    #[test]
    fn a_foreign_event_with_nothing_but_an_id_is_read() {
        let id = MessageId::new();
        let envelope = Envelope {
            topic: String::from("orders"),
            message_id: Some(id.to_string()),
            ..Envelope::default()
        };
        let message = envelope.open().unwrap();
        assert_eq!((message.id, message.kind.as_str()), (id, "orders"));
        assert_eq!(message.time, id.generated_at());
    }
}
