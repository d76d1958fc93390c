//! Messages as producers pass them to the outbox.

use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use time::OffsetDateTime;

use crate::event::Event;
use crate::header::Headers;
use crate::id::MessageId;
use crate::message::{Message, TOMBSTONE};
use crate::sealing::{ERASED_CONTENT_TYPE, SEALED_CONTENT_TYPE, Sealing, SealingError, mark_sealed};
use crate::text::{ContentType, EventType, InvalidText, OrderingKey, Topic};
use crate::trace::{InvalidTrace, TraceContext};

/// A message to be enqueued. The methods accept any value and keep the first mistake, which
/// enqueueing reports before it sends any SQL.
///
/// ```
/// use message::NewMessage;
/// let message = NewMessage::new("orders")
///     .kind("order.placed")
///     .key("order-7")
///     .header("tenant", "acme")
///     .json(&serde_json::json!({"total": 12}));
/// ```
#[derive(Clone)]
#[must_use = "a message does nothing until it is enqueued"]
pub struct NewMessage {
    topic: String,
    kind: Option<EventType>,
    key: Option<OrderingKey>,
    id: Option<MessageId>,
    content_type: ContentType,
    headers: Headers,
    trace: Option<TraceContext>,
    deliver_at: Option<OffsetDateTime>,
    payload: Bytes,
    mistake: Option<InvalidMessage>,
}

impl fmt::Debug for NewMessage {
    /// Prints sizes and names, without the payload and the values of headers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewMessage")
            .field("topic", &self.topic)
            .field("kind", &self.kind)
            .field("key", &self.key)
            .field("id", &self.id)
            .field("content_type", &self.content_type)
            .field("headers", &self.headers)
            .field("trace", &self.trace)
            .field("deliver_at", &self.deliver_at)
            .field("payload", &format_args!("<{} bytes>", self.payload.len()))
            .field("mistake", &self.mistake)
            .finish()
    }
}

/// Why a message cannot be enqueued. The producer is at fault; retrying does not help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMessage {
    /// A name or header is empty or too long, or contains an invalid character.
    #[error(transparent)]
    Text(#[from] InvalidText),
    /// The trace context does not follow the W3C format.
    #[error(transparent)]
    Trace(#[from] InvalidTrace),
    /// The payload could not be serialized as JSON.
    #[error("the payload cannot be written as JSON: {0}")]
    Json(String),
    /// `deliver_at` is a time that databases and brokers cannot represent.
    #[error("deliver_at {0} is out of range; it must lie between 1970 and 9999")]
    DeliverAt(OffsetDateTime),
    /// The content type is [`ERASED_CONTENT_TYPE`]: operators would take the message for one that
    /// was erased.
    #[error(
        "content type {ERASED_CONTENT_TYPE} is reserved for messages that an operator has erased; give the type of \
         the payload"
    )]
    ErasedContentType,
}

/// A message that has passed every check.
#[doc(hidden)]
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The message.
    pub message: Message,
    /// The earliest delivery.
    pub deliver_at: Option<OffsetDateTime>,
    /// Whether the producer supplied the id. The time of other ids is not checked.
    pub is_supplied: bool,
}

impl NewMessage {
    /// Makes an empty message for a topic, with content type `application/octet-stream`.
    pub fn new(topic: impl Into<String>) -> Self {
        Self {
            topic: topic.into(),
            kind: None,
            key: None,
            id: None,
            content_type: ContentType::octets(),
            headers: Headers::new(),
            trace: None,
            deliver_at: None,
            payload: Bytes::new(),
            mistake: None,
        }
    }

    /// Makes a message that carries an event: its topic, kind and key, and the event itself as
    /// JSON.
    pub fn event<E: Event + Serialize + ?Sized>(event: &E) -> Self {
        let message = Self::new(E::TOPIC).kind(E::KIND).json(event);
        match event.key() {
            Some(key) => message.key(key),
            None => message,
        }
    }

    /// Makes a message without a value for a key: on Kafka a record whose value is null, which
    /// deletes the key from a compacted topic. Brokers without such records carry an empty payload
    /// with the header [`TOMBSTONE`]. A payload that is set afterwards makes it an ordinary
    /// message.
    pub fn tombstone(topic: impl Into<String>, key: impl AsRef<str>) -> Self {
        Self::new(topic).key(key).header(TOMBSTONE, "true")
    }

    /// Replaces the topic, such as that of an [`event`](Self::event) by a configured one. To
    /// forward a message to another topic of the same outbox, also give it its own
    /// [`id`](Self::id).
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = topic.into();
        self
    }

    /// Sets the kind of event, the CloudEvents `type`, such as `order.placed`. Default: the topic.
    pub fn kind(mut self, kind: impl AsRef<str>) -> Self {
        match EventType::new(kind.as_ref()) {
            Ok(kind) => self.kind = Some(kind),
            Err(error) => self.note(error),
        }
        self
    }

    /// Sets the ordering key: messages with the same key are published in causal order. Default:
    /// none, without an order.
    pub fn key(mut self, key: impl AsRef<str>) -> Self {
        match OrderingKey::new(key.as_ref()) {
            Ok(key) => self.key = Some(key),
            Err(error) => self.note(error),
        }
        self
    }

    /// Sets the id, for ids made with [`MessageId::derived`] or before this transaction. The outbox
    /// must accept its time (`OutboxBuilder::ids_accepted`). Default: a fresh id.
    ///
    /// An outbox accepts one message per id. The same message again is a duplicate; one with
    /// another kind, content type, payload, topic, key or header is refused. So derive the id from
    /// everything that distinguishes the message, such as topic and tenant.
    pub fn id(mut self, id: MessageId) -> Self {
        self.id = Some(id);
        self
    }

    /// Sets the payload as JSON, with content type `application/json`.
    pub fn json<T: Serialize + ?Sized>(mut self, value: &T) -> Self {
        match serde_json::to_vec(value) {
            Ok(json) => self.payload = json.into(),
            Err(error) => self.note(InvalidMessage::Json(error.to_string())),
        }
        self.content_type = ContentType::json();
        self
    }

    /// Sets the payload as bytes. Does not change the content type.
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = payload.into();
        self
    }

    /// Sets the media type of the payload.
    pub fn content_type(mut self, content_type: impl AsRef<str>) -> Self {
        match ContentType::new(content_type.as_ref()) {
            Ok(content_type) => self.content_type = content_type,
            Err(error) => self.note(error),
        }
        self
    }

    /// Sets a header. Replaces an earlier value of the same name.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        if let Err(error) = self.headers.insert(name, value) {
            self.note(error);
        }
        self
    }

    /// Sets the earliest delivery, by the database's clock. The message is published then or
    /// shortly after. It does not wait for other messages of its key, and they do not wait for it.
    /// Maximum: 14 days ahead, unless the outbox accepts older ids (`OutboxBuilder::ids_accepted`).
    pub fn deliver_at(mut self, at: OffsetDateTime) -> Self {
        if (1970..=9999).contains(&at.to_offset(time::UtcOffset::UTC).year()) {
            self.deliver_at = Some(at);
        } else {
            self.note(InvalidMessage::DeliverAt(at));
        }
        self
    }

    /// Sets the trace context. Default: the one that the outbox captures.
    pub fn trace(mut self, trace: TraceContext) -> Self {
        self.trace = Some(trace);
        self
    }

    /// Encrypts the payload for a subject: call it last, with the payload, its content type and the
    /// id set. Whoever deletes the subject's key later erases the payload wherever it is. The name
    /// of the subject becomes the header `sealed-for`, which everyone can read. Without an
    /// [`id`](Self::id) the message gets a fresh one, because the id is encrypted with the payload.
    ///
    /// Topic, kind, key and headers stay readable: put nothing about the person into them.
    ///
    /// # Errors
    /// [`SealingError`]: the key store is unavailable, or the subject's key was deleted. Enqueueing
    /// reports earlier mistakes in the message. Cancel-safe if the sealing is.
    pub async fn sealed(mut self, sealing: &dyn Sealing, subject: &str) -> Result<Self, SealingError> {
        let id = self.id.unwrap_or_else(MessageId::new);
        mark_sealed(&mut self.headers, subject, &self.content_type)?;
        self.payload = sealing.seal(subject, id, &self.payload).await?.into();
        self.id = Some(id);
        Ok(self.content_type(SEALED_CONTENT_TYPE))
    }

    fn note(&mut self, mistake: impl Into<InvalidMessage>) {
        self.mistake.get_or_insert(mistake.into());
    }

    /// Checks the collected values. Calls `mint` and `capture` only where no id or trace context
    /// was given.
    ///
    /// # Errors
    /// The first mistake, or what `mint` returned.
    #[doc(hidden)]
    pub fn prepare<E: From<InvalidMessage>>(
        self,
        mint: impl FnOnce() -> Result<MessageId, E>,
        capture: impl FnOnce() -> Option<TraceContext>,
    ) -> Result<Prepared, E> {
        if let Some(mistake) = self.mistake {
            return Err(mistake.into());
        }
        if self.content_type.as_str() == ERASED_CONTENT_TYPE {
            return Err(InvalidMessage::ErasedContentType.into());
        }
        let topic = Topic::new(self.topic).map_err(InvalidMessage::from)?;
        let kind = match self.kind {
            Some(kind) => kind,
            None => EventType::new(topic.as_str()).map_err(InvalidMessage::from)?,
        };
        let is_supplied = self.id.is_some();
        let id = self.id.map_or_else(mint, Ok)?;
        let mut message =
            Message::new(topic, kind, self.payload).with_id(id).with_content_type(self.content_type);
        message.key = self.key;
        message.headers = self.headers;
        message.trace = self.trace.or_else(capture);
        Ok(Prepared { message, deliver_at: self.deliver_at, is_supplied })
    }
}

impl From<Message> for NewMessage {
    /// Enqueues a message unchanged, with its id. Source and time are set by the outbox that sends
    /// it. The outbox from which the message came has this id already, so there the message needs
    /// its own [`id`](NewMessage::id).
    fn from(message: Message) -> Self {
        Self {
            topic: message.topic.to_string(),
            kind: Some(message.kind),
            key: message.key,
            id: Some(message.id),
            content_type: message.content_type,
            headers: message.headers,
            trace: message.trace,
            deliver_at: None,
            payload: message.payload,
            mistake: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepare(message: NewMessage) -> Result<Prepared, InvalidMessage> {
        message.prepare(|| Ok(MessageId::new()), || None)
    }

    #[test]
    fn the_first_mistake_is_reported() {
        let error = prepare(NewMessage::new("orders").key("").header("ce_id", "x")).unwrap_err();
        assert_eq!(
            error,
            InvalidMessage::Text(InvalidText::Empty {
                what: "ordering key",
                bytes_max: crate::TEXT_BYTES_MAX
            })
        );
        assert!(prepare(NewMessage::new("or ders")).is_err());
        let late = time::macros::datetime!(1969-12-31 0:00 UTC);
        assert_eq!(
            prepare(NewMessage::new("orders").deliver_at(late)).unwrap_err(),
            InvalidMessage::DeliverAt(late)
        );
    }

    /// A message that is forwarded keeps the content type that its sender chose.
    #[test]
    fn a_message_that_would_count_as_erased_is_refused() {
        let received = prepare(NewMessage::new("orders").json(&1)).unwrap().message;
        let forwarded = received.with_content_type(ContentType::new(ERASED_CONTENT_TYPE).unwrap());
        let error = prepare(NewMessage::from(forwarded)).unwrap_err();
        assert_eq!(error, InvalidMessage::ErasedContentType);
        assert!(error.to_string().contains("application/vnd.outbox.erased is reserved"), "{error}");
        assert!(prepare(NewMessage::new("orders").content_type(SEALED_CONTENT_TYPE)).is_ok());
    }

    #[test]
    fn the_topic_is_the_default_kind() {
        let prepared = prepare(NewMessage::new("orders").json(&1)).unwrap();
        assert_eq!(prepared.message.kind.as_str(), "orders");
        assert!(prepared.message.content_type.is_json());
    }

    #[test]
    fn an_id_is_minted_only_when_none_was_given() {
        let id = MessageId::new();
        let mint = || -> Result<_, InvalidMessage> { panic!("not asked for") };
        let prepared = NewMessage::new("orders").id(id).prepare(mint, || None).unwrap();
        assert!(prepared.message.id == id && prepared.is_supplied);
        assert!(!prepare(NewMessage::new("orders")).unwrap().is_supplied);
    }
}
