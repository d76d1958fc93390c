//! Dead letters: messages that need an operator, kept as they arrived, with the error.

use std::fmt;

use bytes::Bytes;
use message::cloudevents::attributes;
use message::{
    CHUNK_ATTRIBUTES, ContentType, Delivery, EventType, Fingerprint, Headers, Malformed, Message, MessageId,
    OrderingKey, Source, Topic, TraceContext,
};
use time::OffsetDateTime;
use uuid::Uuid;

use super::reason::{Cause, Reason, Resolution};
use crate::error_text::storable;
use crate::ids::{ConsumerName, DeadLetterId, Key, Tenant};

/// The maximum bytes of headers, properties and notes that a dead letter keeps of a malformed
/// delivery. PostgreSQL refuses values of `jsonb` above 256 MiB, so without this bound such a dead
/// letter could never be stored.
pub const EVIDENCE_BYTES_MAX: usize = 64 << 20;

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
    /// The payload; empty when it was not requested (see
    /// [`DeadLetterQuery::with_payloads`](crate::DeadLetterQuery::with_payloads)).
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
            headers: evidence(arrived.into_iter().flatten()),
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

/// The bytes that an entry takes besides its name and value, in memory and in the table.
const ENTRY_BYTES: usize = 64;

/// Prefix of the attributes of a chunk among the headers of its dead letter.
const CHUNK_PREFIX: &str = "ce_";

fn is_chunk(attribute: &str) -> bool {
    CHUNK_ATTRIBUTES.contains(&attribute)
}

/// Returns headers, properties and notes as they are stored: without NUL characters, and within
/// [`EVIDENCE_BYTES_MAX`]. What does not fit is left out, and the last entry says how much.
fn evidence<'a>(arrived: impl Iterator<Item = &'a (String, String)>) -> Vec<(String, String)> {
    let mut kept: Vec<(String, String)> = Vec::new();
    let mut bytes = 0_usize;
    let mut left_out = 0_usize;
    let mut first_left_out = None;
    for (name, value) in arrived {
        // A NUL becomes three bytes.
        let nuls = name.matches('\0').chain(value.matches('\0')).count();
        let size = name.len() + value.len() + 2 * nuls + ENTRY_BYTES;
        if size > EVIDENCE_BYTES_MAX - bytes {
            left_out += 1;
            first_left_out.get_or_insert_with(|| clean(&name.chars().take(64).collect::<String>()));
            continue;
        }
        bytes += size;
        kept.push((clean(name), clean(value)));
    }
    if let Some(first) = first_left_out {
        let count = kept.len() + left_out;
        let note = format!("{} of {count} entries are kept; the first one left out: {first:?}", kept.len());
        kept.push((String::from("inbox.headers_cut"), note));
    }
    kept
}

/// Replaces NUL characters, which PostgreSQL does not store.
fn clean(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// A key whose messages are held one behind another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HeldKey {
    /// The tenant.
    pub tenant: String,
    /// The topic.
    pub topic: String,
    /// The ordering key.
    pub key: String,
}

/// The first held message of a key.
#[derive(Debug, Clone)]
pub struct HeldFirst {
    /// The message.
    pub letter: DeadLetterId,
    /// Its key.
    pub key: HeldKey,
    /// Whether no earlier dead letter holds the key.
    pub is_in_turn: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(entries: &[(String, String)]) -> usize {
        entries.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    #[test]
    fn headers_of_any_size_become_evidence_that_can_be_stored() {
        let pair = |name: &str, value: String| (name.to_owned(), value);
        let arrived = [
            pair("first", String::from("a\0b")),
            pair("nuls", "\0".repeat(EVIDENCE_BYTES_MAX / 2)),
            pair("text", "x".repeat(EVIDENCE_BYTES_MAX / 2)),
            pair("more", "x".repeat(EVIDENCE_BYTES_MAX / 2)),
            pair("last", String::from("1")),
        ];
        let kept = evidence(arrived.iter());
        assert!(bytes(&kept) < EVIDENCE_BYTES_MAX, "{}", bytes(&kept));
        let names: Vec<&str> = kept.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["first", "text", "last", "inbox.headers_cut"]);
        assert_eq!(kept[0].1, "a\u{fffd}b");
        assert_eq!(kept[3].1, "3 of 5 entries are kept; the first one left out: \"nuls\"");
    }

    #[test]
    fn empty_entries_take_room_as_well() {
        let empty = (String::new(), String::new());
        let most = EVIDENCE_BYTES_MAX / ENTRY_BYTES;
        assert_eq!(evidence(std::iter::repeat_n(&empty, most)).len(), most);
        let kept = evidence(std::iter::repeat_n(&empty, most + 1));
        assert_eq!(kept.last().map(|(name, _)| name.as_str()), Some("inbox.headers_cut"));
    }
}
