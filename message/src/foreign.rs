//! Messages of foreign producers, read from deliveries without a usable envelope.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use bytes::Bytes;

use crate::header::Headers;
use crate::id::MessageId;
use crate::message::Message;
use crate::subscription::Malformed;
use crate::text::{ContentType, EventType, InvalidText, OrderingKey, Source, Topic};

/// A message of a foreign producer, made by [`Malformed::to_message`]. Its id is always given,
/// never made here: every delivery of the message must yield the same id, or its effect happens
/// again.
#[derive(Debug, Clone)]
pub struct ForeignMessage(Message);

impl ForeignMessage {
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

    /// Sets the source, which is compared between deliveries with the same id. Default: `/unknown`.
    #[must_use]
    pub fn source(mut self, source: Source) -> Self {
        self.0.source = source;
        self
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

/// Returns whether a [property](Malformed::properties) is the time at which a broker got a message
/// or its producer sent it.
fn is_timestamp(name: &str) -> bool {
    name.ends_with(".timestamp") || name == "sqs.SentTimestamp"
}

impl Malformed {
    /// Returns the first header with this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the time of the delivery that every redelivery repeats: the timestamp of the record
    /// (Kafka), the time at which the message was sent (SQS), or the property `timestamp`, if its
    /// producer has set it (RabbitMQ, to the second).
    #[must_use]
    pub fn timestamp(&self) -> Option<OffsetDateTime> {
        let time = self.properties.iter().find(|(name, _)| is_timestamp(name));
        OffsetDateTime::parse(&time?.1, &Rfc3339).ok()
    }

    /// Makes a message of the delivery, with this id and kind. Topic, key, payload, content type
    /// and headers are the delivery's; its time is that of the id. Headers and a content type that
    /// break our rules are left out.
    ///
    /// # Errors
    /// [`InvalidText`]: the kind, or the delivery's topic or key, is invalid.
    pub fn to_message(&self, id: MessageId, kind: &str) -> Result<ForeignMessage, InvalidText> {
        let key = self.key.as_deref().filter(|key| !key.is_empty()).map(OrderingKey::new).transpose()?;
        let content_type = self.header("content-type").and_then(|text| ContentType::new(text).ok());
        let mut headers = Headers::new();
        for (name, value) in &self.headers {
            headers.insert_first(name, value);
        }
        let topic = Topic::new(self.topic.as_str())?;
        let mut message = Message::new(topic, EventType::new(kind)?, self.payload.clone());
        message.id = id;
        message.time = id.generated_at();
        message.key = key;
        message.content_type = content_type.unwrap_or_else(ContentType::octets);
        message.headers = headers;
        message.source = Source::new("/unknown")?;
        Ok(ForeignMessage(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn a_delivery_becomes_a_message_under_the_given_id() {
        let malformed = Malformed {
            topic: String::from("orders"),
            key: Some(String::from("order-7")),
            headers: vec![
                pair("content-type", "application/json"),
                pair("tenant", "acme"),
                pair("bad\n", "x"),
            ],
            properties: vec![pair("kafka.timestamp", "2023-11-14T22:13:20.123Z")],
            payload: Bytes::from_static(b"{}"),
            ..Malformed::default()
        };
        let at = malformed.timestamp().unwrap();
        let id = MessageId::derived(at, ["7"]).unwrap();
        let message = Message::from(malformed.to_message(id, "order.placed").unwrap());
        assert_eq!((message.id, message.time), (id, at));
        assert_eq!((message.topic.as_str(), message.key.unwrap().as_str()), ("orders", "order-7"));
        assert_eq!(message.headers.get("tenant"), Some("acme"));
        assert_eq!((message.content_type, &message.payload[..]), (ContentType::json(), &b"{}"[..]));
        assert_eq!((malformed.header("tenant"), malformed.header("kafka.timestamp")), (Some("acme"), None));
        assert!(malformed.to_message(id, "").is_err());
    }

    #[test]
    fn a_time_that_no_broker_gave_is_none() {
        assert_eq!(Malformed::default().timestamp(), None);
        let unreadable =
            Malformed { properties: vec![pair("amqp.timestamp", "soon")], ..Malformed::default() };
        assert_eq!(unreadable.timestamp(), None);
    }
}
