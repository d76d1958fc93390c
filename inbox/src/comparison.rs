//! Whether two messages with one id are the same message. Pure: no database.

use bytes::Bytes;
use message::canonical_json::canonical;
use message::{Fingerprint, Message};
use time::OffsetDateTime;

use crate::ids::{ConsumerName, DeadLetterId};
use crate::refusal::Refusal;

/// Rule for when two payloads with one id are the same message. A different payload is refused
/// ([`Refusal::KeyReused`](crate::Refusal::KeyReused)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PayloadComparison {
    /// Equal bytes. A relay sends exactly what was enqueued.
    #[default]
    Bytes,
    /// Equal bytes, or JSON with the same content. For producers that serialize a message again
    /// when they resend it, with members in a different order or with different white space.
    /// Numbers are compared as they are written (`1.0` is not `1`). JSON with duplicate members or
    /// more than 64 levels is compared byte by byte, and so are chunks of a message. Each message
    /// with a JSON content type is parsed once more.
    CanonicalJson,
}

/// Rule for whether the same id from another source is the same message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceComparison {
    /// It is another message, and is refused
    /// ([`Refusal::OtherSource`](crate::Refusal::OtherSource)). CloudEvents are identified by
    /// source and id, and producers that derive ids can make equal ones.
    #[default]
    Compared,
    /// It is the same message: for one outbox whose pipelines have different sources.
    Ignored,
}

/// The part of a message that distinguishes it from other messages with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content<'a> {
    /// The fingerprint of the whole message.
    pub fingerprint: Fingerprint,
    /// The outbox that published it.
    pub source: &'a str,
    /// The fingerprint of its canonical JSON; `None` when contents are not compared or are not
    /// JSON.
    pub canonical: Option<Fingerprint>,
}

impl<'a> Content<'a> {
    pub(crate) fn of(message: &'a Message, payloads: PayloadComparison) -> Self {
        let canonical = match payloads {
            PayloadComparison::Bytes => None,
            PayloadComparison::CanonicalJson => canonical_content(message),
        };
        Self { fingerprint: Fingerprint::of(message), source: message.source.as_str(), canonical }
    }

    pub(crate) fn canonical_bytes(&self) -> Option<&[u8]> {
        self.canonical.as_ref().map(|canonical| &canonical.as_bytes()[..])
    }
}

/// The content of an inbox row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The fingerprint of the message that was processed.
    pub fingerprint: Fingerprint,
    /// Its source; `None` in a row written by another program or an earlier version.
    pub source: Option<String>,
    /// The result that the handler returned.
    pub result: Option<Vec<u8>>,
    /// When the row was inserted.
    pub processed_at: OffsetDateTime,
    /// The dead letter that the message became instead of taking effect.
    pub dead_letter: Option<DeadLetterId>,
}

/// A message that took effect before, or that became a dead letter. An operator can redrive a dead
/// letter, or has discarded it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    /// When it took effect or was dead-lettered, by the database's clock.
    pub processed_at: OffsetDateTime,
    /// The result that its handler returned.
    pub result: Option<Bytes>,
    /// The dead letter that it became; then it took no effect.
    pub dead_letter: Option<DeadLetterId>,
}

impl From<Stored> for Duplicate {
    fn from(Stored { result, processed_at, dead_letter, .. }: Stored) -> Self {
        Self { processed_at, result: result.map(Bytes::from), dead_letter }
    }
}

/// Returns the fingerprint of a message; for a chunk, that of the whole.
pub(crate) fn identity(message: &Message) -> Fingerprint {
    message.chunk.as_ref().map_or_else(|| Fingerprint::of(message), |chunk| chunk.fingerprint())
}

/// Compares a stored row with a received message.
pub(crate) fn compare(
    stored: Stored,
    consumer: &ConsumerName,
    message: &Message,
    sources: SourceComparison,
) -> Result<Duplicate, Refusal> {
    let source = message.source.as_str();
    if let (SourceComparison::Compared, Some(other)) = (sources, &stored.source)
        && other != source
    {
        return Err(Refusal::OtherSource {
            id: message.id,
            consumer: consumer.clone(),
            stored: other.clone(),
            received: source.to_owned(),
            processed_at: stored.processed_at,
        });
    }
    let received = identity(message);
    if stored.fingerprint == received {
        return Ok(stored.into());
    }
    Err(Refusal::KeyReused {
        id: message.id,
        consumer: consumer.clone(),
        stored: stored.fingerprint,
        received,
        processed_at: stored.processed_at,
    })
}

/// Returns the fingerprint of a whole message's content; `None` when it is not JSON.
pub(crate) fn canonical_content(message: &Message) -> Option<Fingerprint> {
    if message.chunk.is_some() || !message.content_type.is_json() {
        return None;
    }
    let content = canonical(&message.payload)?;
    Some(Fingerprint::of_parts(message.kind.as_str(), message.content_type.as_str(), &content))
}
