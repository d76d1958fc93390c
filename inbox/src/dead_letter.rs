//! Dead letters: messages that need an operator, kept as they arrived, with the error.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use bytes::Bytes;
use message::cloudevents::attributes;
use message::{
    CHUNK_ATTRIBUTES, ContentType, Delivery, EventType, Fingerprint, Headers, Malformed, Message, MessageId,
    OrderingKey, Source, Topic, TraceContext,
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::attempts::storable;
use crate::dialect::Key;
use crate::name::{ConsumerName, Tenant};
use crate::reason::{Reason, Resolution};
use crate::store_dead_letter::Cause;

/// The id of a dead letter; ascends with time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeadLetterId(pub Uuid);

impl fmt::Display for DeadLetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for DeadLetterId {
    type Err = uuid::Error;
    fn from_str(value: &str) -> Result<Self, uuid::Error> {
        Uuid::parse_str(value).map(Self)
    }
}

/// A dead letter. A malformed delivery is kept as it arrived, so many fields are plain text.
#[derive(Clone, PartialEq)]
pub struct DeadLetter {
    /// Its own id.
    pub id: DeadLetterId,
    /// The consumer that it was for.
    pub consumer: String,
    /// The tenant.
    pub tenant: String,
    /// The id of the delivery: see [`Delivery::subject`].
    pub subject: Uuid,
    /// The hash that distinguishes payloads with the same id. For a malformed delivery, the UUID of
    /// its first arrival, or zeros: see [`Malformed::first_arrival`].
    pub fingerprint: Fingerprint,
    /// The message's id, if it has one.
    pub message_id: Option<MessageId>,
    /// The topic or queue.
    pub topic: String,
    /// The ordering key.
    pub key: Option<String>,
    /// The event type.
    pub kind: Option<String>,
    /// The CloudEvents source.
    pub source: Option<String>,
    /// The CloudEvents time.
    pub time: Option<OffsetDateTime>,
    /// The media type.
    pub content_type: Option<String>,
    /// Free headers. For a malformed delivery: all headers, properties and notes of the broker
    /// ([`Malformed`]). For a chunk: also the attributes that identify it.
    pub headers: Vec<(String, String)>,
    /// The W3C trace context: `traceparent` and `tracestate`.
    pub trace: Option<(String, Option<String>)>,
    /// The payload; empty when it was not requested (see [`DeadLetterQuery::with_payloads`]).
    pub payload: Bytes,
    /// Size of the payload in bytes, even when the payload was not requested.
    pub payload_bytes: u64,
    /// Why it was dead-lettered.
    pub reason: Reason,
    /// The last error.
    pub error: String,
    /// Number of times the handler failed.
    pub attempts: u32,
    /// Number of times it was delivered and dead-lettered.
    pub deliveries: u32,
    /// Where the delivery came from.
    pub origin: String,
    /// When it was first dead-lettered.
    pub dead_at: OffsetDateTime,
    /// How and when it was closed; `None` while it is open.
    pub resolved: Option<(Resolution, OffsetDateTime)>,
    /// Position among all dead letters of the database. Within a key it ascends in the order of
    /// arrival. The id does not, when the clocks of processes disagree.
    pub seq: i64,
}

impl fmt::Debug for DeadLetter {
    /// Hides what only the consumer should read: shows the size of the payload and the names of the
    /// headers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetter")
            .field("id", &self.id)
            .field("consumer", &self.consumer)
            .field("tenant", &self.tenant)
            .field("subject", &self.subject)
            .field("message_id", &self.message_id)
            .field("topic", &self.topic)
            .field("key", &self.key)
            .field("kind", &self.kind)
            .field("headers", &self.headers.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("payload", &format_args!("<{} bytes>", self.payload_bytes))
            .field("reason", &self.reason)
            .field("error", &self.error)
            .field("attempts", &self.attempts)
            .field("deliveries", &self.deliveries)
            .field("origin", &self.origin)
            .field("dead_at", &self.dead_at)
            .field("resolved", &self.resolved)
            .field("seq", &self.seq)
            .finish()
    }
}

/// A query for dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterQuery {
    /// Only those of this consumer; `None` for all consumers.
    pub consumer: Option<ConsumerName>,
    /// Whether to include closed ones.
    pub resolved_too: bool,
    /// Only those after this one: the last id of the previous result.
    pub after: Option<DeadLetterId>,
    /// Maximum number of results.
    pub limit: NonZeroU32,
    /// Whether to read dead letters whole. A hundred large ones take much memory. Without this,
    /// payloads and the values of headers are empty, a longer key is its first 1,024 characters
    /// and `...`, and only 100 names of headers are read, of at most 255 characters each.
    pub with_payloads: bool,
}

impl Default for DeadLetterQuery {
    fn default() -> Self {
        let limit = NonZeroU32::MIN.saturating_add(99);
        Self { consumer: None, resolved_too: false, after: None, limit, with_payloads: true }
    }
}

impl DeadLetter {
    /// Makes the dead letter of a delivery, without storing it.
    #[must_use]
    pub(crate) fn of(
        delivery: &Delivery,
        consumer: &ConsumerName,
        tenant: &Tenant,
        Cause { reason, error, attempts }: Cause,
    ) -> Self {
        let blank = Self {
            id: DeadLetterId(Uuid::now_v7()),
            consumer: consumer.as_str().to_owned(),
            tenant: tenant.as_str().to_owned(),
            subject: delivery.subject(),
            fingerprint: Fingerprint::from([0; 32]),
            message_id: None,
            topic: String::new(),
            key: None,
            kind: None,
            source: None,
            time: None,
            content_type: None,
            headers: Vec::new(),
            trace: None,
            payload: Bytes::new(),
            payload_bytes: 0,
            reason,
            error: storable(&error),
            attempts,
            deliveries: 1,
            origin: clean(&delivery.origin),
            dead_at: OffsetDateTime::UNIX_EPOCH,
            resolved: None,
            seq: 0,
        };
        match &delivery.message {
            Ok(message) => blank.with_message(message).told_apart(),
            Err(malformed) => blank.with_malformed(malformed),
        }
    }

    fn with_message(self, message: &Message) -> Self {
        let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let chunk = attributes(message)
            .filter(|(name, _)| message.chunk.is_some() && CHUNK_ATTRIBUTES.contains(name))
            .map(|(name, value)| text(&format!("{CHUNK_PREFIX}{name}"), &value));
        let trace = |t: &TraceContext| (t.parent().to_owned(), t.state().map(str::to_owned));
        Self {
            fingerprint: Fingerprint::of(message),
            message_id: Some(message.id),
            topic: message.topic.as_str().to_owned(),
            key: message.key.as_ref().map(|key| key.as_str().to_owned()),
            kind: Some(message.kind.as_str().to_owned()),
            source: Some(message.source.as_str().to_owned()),
            time: Some(message.time),
            content_type: Some(message.content_type.as_str().to_owned()),
            headers: message.headers.iter().map(|(name, value)| text(name, value)).chain(chunk).collect(),
            trace: message.trace.as_ref().map(trace),
            payload: message.payload.clone(),
            payload_bytes: message.payload.len() as u64,
            ..self
        }
    }

    fn with_malformed(self, malformed: &Malformed) -> Self {
        let arrived = [&malformed.headers, &malformed.properties, &malformed.broker_notes];
        let mut fingerprint = [0; 32];
        if let Some(arrival) = malformed.first_arrival {
            fingerprint[16..].copy_from_slice(arrival.as_bytes());
        }
        Self {
            fingerprint: Fingerprint::from(fingerprint),
            topic: clean(&malformed.topic),
            key: malformed.key.as_deref().map(clean),
            headers: arrived.into_iter().flatten().map(|(name, value)| (clean(name), clean(value))).collect(),
            payload: malformed.payload.clone(),
            payload_bytes: malformed.payload.len() as u64,
            ..self
        }
    }

    /// Returns the message that it holds.
    ///
    /// # Errors
    /// A description of what is missing or wrong, when the delivery was malformed.
    pub fn message(&self) -> Result<Message, String> {
        let id = self.message_id.ok_or_else(|| format!("it is malformed: {}", self.error))?;
        match self.reason {
            Reason::Malformed | Reason::Incomplete => {
                return Err(format!("it is {}: {}", self.reason, self.error));
            }
            Reason::NoTenant => return Err(format!("its tenant is unknown: {}", self.error)),
            Reason::Poison
            | Reason::Rejected
            | Reason::KeyReused
            | Reason::TooOld
            | Reason::FromTheFuture
            | Reason::Held => {}
        }
        if self.headers.iter().any(|(name, _)| name.strip_prefix(CHUNK_PREFIX).is_some_and(is_chunk)) {
            return Err(String::from(
                "it is a single chunk of a message, and the other chunks were not stored",
            ));
        }
        let wrong = |error: message::InvalidText| error.to_string();
        let required =
            |value: &Option<String>, what: &str| value.clone().ok_or_else(|| format!("it has no {what}"));
        let mut headers = Headers::new();
        for (name, value) in &self.headers {
            headers.insert(name.as_str(), value.as_str()).map_err(wrong)?;
        }
        let trace = self.trace.clone().map(|(parent, state)| TraceContext::new(parent, state)).transpose();
        Ok(Message {
            id,
            topic: Topic::new(self.topic.as_str()).map_err(wrong)?,
            key: self.key.as_deref().map(OrderingKey::new).transpose().map_err(wrong)?,
            kind: EventType::new(required(&self.kind, "event type")?).map_err(wrong)?,
            source: Source::new(required(&self.source, "source")?).map_err(wrong)?,
            time: self.time.unwrap_or_else(|| id.generated_at()),
            content_type: ContentType::new(required(&self.content_type, "content type")?).map_err(wrong)?,
            headers,
            trace: trace.map_err(|error| error.to_string())?,
            payload: self.payload.clone(),
            chunk: None,
        })
    }
}

impl DeadLetter {
    /// Distinguishes two messages with one id and equal contents by their source. Otherwise they
    /// would be stored as one dead letter.
    fn told_apart(self) -> Self {
        let Some(source) = self.source.as_deref() else { return self };
        Self { fingerprint: Fingerprint::of_parts(source, "", self.fingerprint.as_bytes()), ..self }
    }

    /// Returns whether only its subject identifies the delivery.
    pub(crate) fn is_nameless(&self) -> bool {
        self.message_id.is_none() && self.fingerprint == Fingerprint::from([0; 32])
    }

    /// Returns the key of its inbox row, whether that row exists or not.
    pub(crate) fn key(&self) -> Key<'_> {
        Key { consumer: &self.consumer, tenant: &self.tenant, id: self.subject }
    }
}

/// Prefix of the attributes of a chunk among the headers of its dead letter.
const CHUNK_PREFIX: &str = "ce_";

fn is_chunk(attribute: &str) -> bool {
    CHUNK_ATTRIBUTES.contains(&attribute)
}

/// Replaces NUL characters, which PostgreSQL does not store.
fn clean(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
