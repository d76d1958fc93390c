//! A message of a foreign producer, made of a delivery without a usable envelope.

use bytes::Bytes;
use time::OffsetDateTime;

use crate::cloudevents::is_attribute;
use crate::header::{HEADERS_MAX, HeaderName, Headers};
use crate::id::MessageId;
use crate::message::{Message, TOMBSTONE};
use crate::subscription::Malformed;
use crate::text::{ContentType, EventType, InvalidText, OrderingKey, Source, Topic};
use crate::trace::TraceContext;

/// Maximum bytes of the names in [`ForeignMessage::LEFT_OUT`].
const LEFT_OUT_BYTES_MAX: usize = 2_000;

/// A message of a foreign producer, made by [`Malformed::to_message`]. Its id is always given,
/// never made here: every delivery of the message must yield the same id, or its effect happens
/// again.
#[derive(Debug, Clone)]
pub struct ForeignMessage(Message);

impl ForeignMessage {
    /// The header that names the headers and properties of a delivery which a message cannot carry:
    /// names in quotation marks, up to some 2,000 bytes.
    pub const LEFT_OUT: &str = "foreign.left_out";

    /// Sets the ordering key. Default: that of the delivery.
    #[must_use]
    pub fn key(mut self, key: OrderingKey) -> Self {
        self.0.key = Some(key);
        self
    }

    /// Sets the topic. Default: that of the delivery.
    #[must_use]
    pub fn topic(mut self, topic: Topic) -> Self {
        self.0.topic = topic;
        self
    }

    /// Sets the kind. Default: the one that the message was made with.
    #[must_use]
    pub fn kind(mut self, kind: EventType) -> Self {
        self.0.kind = kind;
        self
    }

    /// Sets the source, which is compared between deliveries with the same id. Default: `/unknown`.
    #[must_use]
    pub fn source(mut self, source: Source) -> Self {
        self.0.source = source;
        self
    }

    /// Sets the time at which the message was produced. Default: that of the id.
    #[must_use]
    pub fn time(mut self, time: OffsetDateTime) -> Self {
        self.0.time = time;
        self
    }

    /// Sets the media type of the payload. Default: that of the delivery, or
    /// `application/octet-stream`.
    #[must_use]
    pub fn content_type(mut self, content_type: ContentType) -> Self {
        self.0.content_type = content_type;
        self
    }

    /// Sets a header, replacing the value that the delivery gave it.
    ///
    /// # Errors
    /// [`InvalidText`] as for [`Headers::insert`].
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, InvalidText> {
        self.0.headers.insert(name, value)?;
        Ok(self)
    }

    /// Sets the payload that the handler gets. Default: that of the delivery.
    #[must_use]
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.0.payload = payload.into();
        self
    }
}

impl From<ForeignMessage> for Message {
    fn from(foreign: ForeignMessage) -> Self {
        foreign.0
    }
}

impl Malformed {
    /// Makes a message of the delivery, with this id and kind. Everything else is the delivery's:
    ///
    /// * topic, payload and content type; the ordering key as for
    ///   [`ordering_key`](Self::ordering_key); the trace context.
    /// * Headers, and extension attributes of CloudEvents, which lose their prefix. The properties
    ///   are headers as well, under their own names: `kafka.timestamp`, `amqp.correlation_id`.
    /// * A record without a value has the header [`TOMBSTONE`]. A record with one (Kafka) never has
    ///   it: whatever its sender wrote, it deletes nothing.
    ///
    /// The time is that of the id. Headers that break our rules are left out. Their names are in
    /// the header [`ForeignMessage::LEFT_OUT`].
    ///
    /// # Errors
    /// [`InvalidText`]: the kind, or the delivery's topic, is invalid.
    pub fn to_message(&self, id: MessageId, kind: &str) -> Result<ForeignMessage, InvalidText> {
        let topic = Topic::new(self.topic.as_str())?;
        let mut message = Message::new(topic, EventType::new(kind)?, self.payload.clone());
        message.id = id;
        message.time = id.generated_at();
        message.key = self.ordering_key();
        let content_type = self.header("ce_datacontenttype").or_else(|| self.header("content-type"));
        message.content_type =
            content_type.and_then(|text| ContentType::new(text).ok()).unwrap_or_else(ContentType::octets);
        message.headers = self.free_headers();
        let state = || self.header("tracestate").map(str::to_owned);
        message.trace = self.header("traceparent").and_then(|parent| TraceContext::new(parent, state()).ok());
        message.source = Source::new("/unknown")?;
        Ok(ForeignMessage(message))
    }

    /// Returns headers and properties as headers of a message.
    fn free_headers(&self) -> Headers {
        let mut headers = Headers::new();
        let mut left_out = Vec::new();
        if self.is_tombstone() {
            headers.insert_first(TOMBSTONE, "true");
        }
        // Properties come first: no sender may give a fact of the broker another value.
        for (name, value) in self.properties.iter().chain(&self.headers) {
            let extension = name.strip_prefix("ce_").filter(|attribute| !is_attribute(attribute));
            let kept = extension.unwrap_or(name);
            // The last place is reserved for the list of headers that are left out.
            let is_ours = kept == ForeignMessage::LEFT_OUT || (kept == TOMBSTONE && self.has_value());
            if headers.len() < HEADERS_MAX - 1 && !is_ours {
                headers.insert_first(kept, value);
            }
            // Names of the envelope have places of their own in the message.
            if headers.get(kept) != Some(value) && !HeaderName::is_reserved(kept) {
                left_out.push(name.as_str());
            }
        }
        if !left_out.is_empty() {
            headers.insert_first(ForeignMessage::LEFT_OUT, &listed(&left_out));
        }
        headers
    }
}

/// Returns names as one text that a header can carry.
fn listed(names: &[&str]) -> String {
    let mut text = String::new();
    for (at, name) in names.iter().enumerate() {
        let name: String = name.chars().take(64).collect();
        let name = format!("{name:?}");
        if text.len() + name.len() > LEFT_OUT_BYTES_MAX {
            text.push_str(&format!(" and {} more", names.len() - at));
            break;
        }
        if at > 0 {
            text.push_str(", ");
        }
        text.push_str(&name);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    fn delivery() -> Malformed {
        Malformed {
            topic: String::from("orders"),
            key: Some(String::from("order-7")),
            headers: vec![
                pair("content-type", "application/json"),
                pair("tenant", "acme"),
                pair("ce_partitionkey", "p"),
                pair("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
                pair("bad\n", "x"),
                pair("stack", "a\nb"),
                pair("tenant", "other"),
                pair("kafka.timestamp", "now"),
                pair(ForeignMessage::LEFT_OUT, "nothing"),
            ],
            properties: vec![
                pair("kafka.timestamp", "2023-11-14T22:13:20.123Z"),
                pair("kafka.key_hex", "00ff"),
                pair("kafka.value", "null"),
            ],
            payload: Bytes::from_static(b"{}"),
            ..Malformed::default()
        }
    }

    #[test]
    fn a_delivery_becomes_a_message_under_the_given_id() {
        let malformed = delivery();
        let at = malformed.timestamp().unwrap();
        let id = MessageId::derived(at, ["7"]).unwrap();
        let message = Message::from(malformed.to_message(id, "order.placed").unwrap());
        assert_eq!((message.id, message.time), (id, at));
        assert_eq!((message.topic.as_str(), message.key.unwrap().as_str()), ("orders", "hex:00ff"));
        assert_eq!((message.content_type, &message.payload[..]), (ContentType::json(), &b"{}"[..]));
        for (name, value) in [
            ("tenant", Some("acme")),
            ("partitionkey", Some("p")),
            ("kafka.timestamp", Some("2023-11-14T22:13:20.123Z")),
            ("kafka.key_hex", Some("00ff")),
            ("kafka.value", Some("null")),
            (TOMBSTONE, Some("true")),
            (
                ForeignMessage::LEFT_OUT,
                Some(r#""bad\n", "stack", "tenant", "kafka.timestamp", "foreign.left_out""#),
            ),
            ("traceparent", None),
        ] {
            assert_eq!(message.headers.get(name), value, "{name}");
        }
        assert!(message.trace.unwrap().parent().starts_with("00-4bf9"));
        assert!(malformed.to_message(id, "").is_err());
    }

    #[test]
    fn no_sender_makes_a_record_with_a_value_a_tombstone() {
        let mut malformed = delivery();
        malformed.payload = Bytes::new();
        malformed.headers = vec![pair(TOMBSTONE, "true")];
        let id = MessageId::derived(malformed.timestamp().unwrap(), ["7"]).unwrap();
        let read = |malformed: &Malformed| Message::from(malformed.to_message(id, "k").unwrap());
        let tombstone = read(&malformed);
        assert!(tombstone.is_tombstone() && tombstone.headers.get(ForeignMessage::LEFT_OUT).is_none());
        malformed.properties.retain(|(name, _)| name != "kafka.value");
        let empty = read(&malformed);
        assert_eq!(empty.headers.get(TOMBSTONE), None);
        assert_eq!(empty.headers.get(ForeignMessage::LEFT_OUT), Some("\"tombstone\""));
        // Other brokers have no null: there, the header stands for it.
        malformed.properties.clear();
        assert!(read(&malformed).is_tombstone());
    }

    #[test]
    fn what_is_left_out_is_named_to_a_bound() {
        let mut malformed = delivery();
        malformed.headers = (0..3_000).map(|number| pair(&format!("bad name {number}"), "x")).collect();
        let id = MessageId::derived(malformed.timestamp().unwrap(), ["7"]).unwrap();
        let message = Message::from(malformed.to_message(id, "k").unwrap());
        let listed = message.headers.get(ForeignMessage::LEFT_OUT).unwrap();
        assert!(listed.starts_with("\"bad name 0\", ") && listed.ends_with(" more"), "{listed}");
        malformed.headers = (0..3_000).map(|number| pair(&format!("name{number}"), "x")).collect();
        let message = Message::from(malformed.to_message(id, "k").unwrap());
        let listed = message.headers.get(ForeignMessage::LEFT_OUT).unwrap();
        assert!(listed.starts_with("\"name995\", "), "{listed}");
        assert_eq!(message.headers.len(), HEADERS_MAX);
    }
}
