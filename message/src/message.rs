//! The envelope.

use std::fmt;

use bytes::Bytes;
use time::OffsetDateTime;

use crate::chunk::Chunk;
use crate::fingerprint::Fingerprint;
use crate::header::Headers;
use crate::id::MessageId;
use crate::text::{ContentType, EventType, OrderingKey, Source, Topic};
use crate::trace::TraceContext;

/// Room for names of CloudEvents attributes, separators and length fields of one message on the
/// wire, in bytes, rounded up.
const ENVELOPE_BYTES: usize = 512;

/// Room for the overhead of one header, on the wire (quotation marks, separators, length fields)
/// and in memory, in bytes.
const HEADER_BYTES: usize = 24;

/// Bytes reserved for the attributes of a chunk, rounded up.
pub(crate) const CHUNK_BYTES: usize = 256;

/// The header that marks a message without a value: `tombstone: true`, beside an empty payload. On
/// Kafka such a message is a record whose value is null, which deletes its key from a compacted
/// topic. Elsewhere it is an empty payload with this header.
pub const TOMBSTONE: &str = "tombstone";

/// A message on its way from a producer's transaction to a consumer's.
///
/// All parts but the payload are small and validated. Cloning is cheap: text and bytes are shared.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// The stable identity, made once by the producer.
    pub id: MessageId,
    /// The topic that it is published to.
    pub topic: Topic,
    /// Messages with the same key leave in causal order; without a key there is no order.
    pub key: Option<OrderingKey>,
    /// The kind of event: the CloudEvents `type`.
    pub kind: EventType,
    /// The outbox it comes from: the CloudEvents `source`.
    pub source: Source,
    /// The time at which it was enqueued: the CloudEvents `time`.
    pub time: OffsetDateTime,
    /// The media type of the payload.
    pub content_type: ContentType,
    /// Free headers.
    pub headers: Headers,
    /// The trace context of the span in which it was enqueued.
    pub trace: Option<TraceContext>,
    /// The payload, opaque to the toolkit.
    pub payload: Bytes,
    /// Its position in a larger message; `None` for a whole message.
    pub chunk: Option<Box<Chunk>>,
}

impl fmt::Debug for Message {
    /// Prints the size of the payload and the names of headers: only the consumer should read more.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.id)
            .field("topic", &self.topic)
            .field("key", &self.key)
            .field("kind", &self.kind)
            .field("source", &self.source)
            .field("time", &self.time)
            .field("content_type", &self.content_type)
            .field("headers", &self.headers)
            .field("trace", &self.trace)
            .field("payload", &format_args!("<{} bytes>", self.payload.len()))
            .field("chunk", &self.chunk)
            .finish()
    }
}

impl Message {
    /// Makes a message with a fresh id, no key, no headers and the content type
    /// `application/octet-stream`.
    #[must_use]
    pub fn new(topic: Topic, kind: EventType, payload: impl Into<Bytes>) -> Self {
        let id = MessageId::new();
        Self {
            id,
            topic,
            key: None,
            kind,
            source: default_source(),
            time: id.generated_at(),
            content_type: ContentType::octets(),
            headers: Headers::new(),
            trace: None,
            payload: payload.into(),
            chunk: None,
        }
    }

    /// Sets the ordering key.
    #[must_use]
    pub fn with_key(mut self, key: OrderingKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Sets the identity, for ids made with [`MessageId::derived`].
    #[must_use]
    pub fn with_id(mut self, id: MessageId) -> Self {
        self.id = id;
        self
    }

    /// Sets the media type of the payload.
    #[must_use]
    pub fn with_content_type(mut self, content_type: ContentType) -> Self {
        self.content_type = content_type;
        self
    }

    /// Returns whether this is a message without a value: its payload is empty, and its header
    /// [`TOMBSTONE`] is `true`.
    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        self.payload.is_empty() && self.headers.get(TOMBSTONE) == Some("true")
    }

    /// Returns an upper estimate of the size on any broker's wire, in bytes: payload, key, headers,
    /// envelope.
    #[must_use]
    pub fn wire_bytes(&self) -> usize {
        self.envelope_bytes() + self.payload.len()
    }

    /// Returns [`wire_bytes`](Self::wire_bytes) without the payload.
    pub(crate) fn envelope_bytes(&self) -> usize {
        let trace =
            self.trace.as_ref().map_or(0, |trace| trace.parent().len() + trace.state().map_or(0, str::len));
        ENVELOPE_BYTES
            + self.chunk.as_ref().map_or(0, |_| CHUNK_BYTES)
            + self.key.as_ref().map_or(0, |key| key.as_str().len())
            + self.topic.as_str().len()
            + self.kind.as_str().len()
            + self.source.as_str().len()
            + self.content_type.as_str().len()
            + self.headers.bytes()
            + self.headers.len() * HEADER_BYTES
            + trace
    }
}

/// Returns the source of messages whose outbox has no name.
#[expect(clippy::expect_used, reason = "a constant, checked by the test below")]
fn default_source() -> Source {
    Source::new("/outbox").expect("a valid constant")
}

impl Fingerprint {
    /// Returns the fingerprint of a message.
    #[must_use]
    pub fn of(message: &Message) -> Self {
        Self::of_parts(message.kind.as_str(), message.content_type.as_str(), &message.payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_source_is_valid() {
        assert_eq!(default_source().as_str(), "/outbox");
    }
}
