//! Reasons why a message is refused with an error, before any effect.

use message::{Fault, Fingerprint, Message, MessageId};
use time::OffsetDateTime;

use crate::ids::ConsumerName;

/// A message that the inbox refuses. It is the message's fault: it is dead-lettered at once,
/// because trying again does not help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The id was already used with a different payload: a bug of the producer. Silently applying
    /// or dropping either copy would lose an effect.
    #[error(
        "message {id} was processed at {processed_at} by consumer {consumer} with fingerprint {stored}, and \
         arrived again with {received}: the producer used one id for two payloads; correct the producer, \
         then send the second payload with a new id"
    )]
    KeyReused {
        /// The id.
        id: MessageId,
        /// The consumer.
        consumer: ConsumerName,
        /// The fingerprint of the payload that took effect.
        stored: Fingerprint,
        /// The fingerprint of the payload that arrived now.
        received: Fingerprint,
        /// When the stored message took effect.
        processed_at: OffsetDateTime,
    },
    /// The id was already used by another source, with the same or a different payload. Either two
    /// producers derived ids from equal parts, or one outbox is published through two pipelines.
    /// Taking the second message for a copy would silently lose its effect.
    #[error(
        "message {id} from source {stored} was processed at {processed_at} by consumer {consumer}, and \
         source {received} sent the same id: if both producers derive ids, include the source in the derived \
         parts and send this message with a new id; if the sources are pipelines of one outbox, give both \
         the same `source`"
    )]
    OtherSource {
        /// The id.
        id: MessageId,
        /// The consumer.
        consumer: ConsumerName,
        /// The source of the message that took effect.
        stored: String,
        /// The source of the message that arrived now.
        received: String,
        /// When the stored message took effect.
        processed_at: OffsetDateTime,
    },
    /// The id is older than the inbox remembers, so it is unknown whether it took effect.
    #[error(
        "message {id} was generated at {generated_at}, but the inbox remembers only ids from \
         {oldest_accepted_at} on, so it is unknown whether this message took effect; find out, then requeue \
         it with late messages accepted, or discard it"
    )]
    TooOld {
        /// The id.
        id: MessageId,
        /// The time that the id carries.
        generated_at: OffsetDateTime,
        /// The oldest time that is currently accepted.
        oldest_accepted_at: OffsetDateTime,
    },
    /// The id's time is further ahead of the database's clock than the allowed skew. Such an id
    /// could outlive its record.
    #[error(
        "message {id} was generated at {generated_at}, but the newest accepted time is \
         {newest_accepted_at}: correct the producer's clock, and requeue the message when its time has come"
    )]
    FromTheFuture {
        /// The id.
        id: MessageId,
        /// The time that the id carries.
        generated_at: OffsetDateTime,
        /// The newest time that is currently accepted.
        newest_accepted_at: OffsetDateTime,
    },
    /// A chunk was admitted as if it were a whole message.
    #[error(
        "message {id} is only chunk {} of {count}: pass every message to `gather` first, and admit whole \
         messages only",
        .index + 1
    )]
    Fragment {
        /// The id.
        id: MessageId,
        /// The index of the chunk, from 0.
        index: u32,
        /// The number of chunks of the message.
        count: u32,
    },
    /// A chunk that cannot be part of its message.
    #[error("a chunk of message {id} cannot be stored: {problem}")]
    Chunk {
        /// The id.
        id: MessageId,
        /// The reason, and what to do.
        problem: String,
    },
}

impl Refusal {
    /// Returns the refused id.
    #[must_use]
    pub fn id(&self) -> MessageId {
        match self {
            Self::KeyReused { id, .. }
            | Self::OtherSource { id, .. }
            | Self::TooOld { id, .. }
            | Self::FromTheFuture { id, .. }
            | Self::Fragment { id, .. }
            | Self::Chunk { id, .. } => *id,
        }
    }

    /// Returns a refusal if the message is a chunk.
    pub(crate) fn of_fragment(message: &Message) -> Option<Self> {
        let chunk = message.chunk.as_deref()?;
        Some(Self::Fragment { id: message.id, index: chunk.index(), count: chunk.count() })
    }

    /// Returns the party at fault: always the message.
    #[must_use]
    pub fn fault(&self) -> Fault {
        Fault::Message
    }
}
