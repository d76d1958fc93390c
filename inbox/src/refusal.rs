//! Why a message is refused: loudly, before any effect.

use message::{Fault, Fingerprint, Message, MessageId};
use time::OffsetDateTime;

use crate::name::ConsumerName;

/// A message that the inbox does not let through. The message's fault: it goes to the dead letters
/// at once, and trying again does not help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The id was used before with another payload: a producer's bug. Applying or dropping either
    /// copy in silence would lose an effect.
    #[error(
        "message {id} was processed at {processed_at} by consumer {consumer} with fingerprint {stored}, and came \
         again with {received}: its producer used one id for two payloads; correct the producer, then send the \
         second payload under an id of its own"
    )]
    KeyReused {
        /// The id.
        id: MessageId,
        /// The consumer.
        consumer: ConsumerName,
        /// The fingerprint of the payload that took effect.
        stored: Fingerprint,
        /// The fingerprint of the payload that came now.
        received: Fingerprint,
        /// When the first took effect.
        processed_at: OffsetDateTime,
    },
    /// The id was used before by another source, with the same or another payload: ids that two
    /// producers derived from equal parts, or one outbox that leaves through two pipelines. Taking
    /// the second for a copy would lose its effect in silence.
    #[error(
        "message {id} of source {stored} was processed at {processed_at} by consumer {consumer}, and source {received} \
         sent its id too: where both derive ids, put the source into the parts and send the message under an id of its \
         own; where they are pipelines of one outbox, give both one `source`"
    )]
    OtherSource {
        /// The id.
        id: MessageId,
        /// The consumer.
        consumer: ConsumerName,
        /// The source of the message that took effect.
        stored: String,
        /// The source of the message that came now.
        received: String,
        /// When the first took effect.
        processed_at: OffsetDateTime,
    },
    /// The id is older than what the inbox remembers, so nobody can tell whether it took effect.
    #[error(
        "message {id} was generated at {generated_at}; the inbox remembers ids from {oldest_accepted_at} on, so it \
         is unknown whether this one took effect; find out, then redrive it with late messages accepted, or discard it"
    )]
    TooOld {
        /// The id.
        id: MessageId,
        /// The time that the id carries.
        generated_at: OffsetDateTime,
        /// The oldest time that is accepted at present.
        oldest_accepted_at: OffsetDateTime,
    },
    /// The id's time lies further ahead of the database's clock than skew explains. It would
    /// outlive its record.
    #[error(
        "message {id} was generated at {generated_at}, but the newest accepted time is {newest_accepted_at}: correct \
         the producer's clock, then redrive the message when that time has come"
    )]
    FromTheFuture {
        /// The id.
        id: MessageId,
        /// The time that the id carries.
        generated_at: OffsetDateTime,
        /// The newest time that is accepted at present.
        newest_accepted_at: OffsetDateTime,
    },
    /// A chunk that was to be admitted as if it were the whole message.
    #[error(
        "message {id} is only chunk {} of {count}: hand every message to `gather` first, and admit what is whole",
        .index + 1
    )]
    Fragment {
        /// The id.
        id: MessageId,
        /// Which chunk, from 0.
        index: u32,
        /// How many there are.
        count: u32,
    },
    /// A chunk that cannot be a part of its message.
    #[error("a chunk of message {id} cannot be kept: {problem}")]
    Chunk {
        /// The id.
        id: MessageId,
        /// Why, and what to do.
        problem: String,
    },
}

impl Refusal {
    /// The refused id.
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

    /// That a message is a chunk, if it is one.
    pub(crate) fn of_fragment(message: &Message) -> Option<Self> {
        let chunk = message.chunk.as_deref()?;
        Some(Self::Fragment { id: message.id, index: chunk.index(), count: chunk.count() })
    }

    /// Whose fault it is: always the message's.
    #[must_use]
    pub fn fault(&self) -> Fault {
        Fault::Message
    }
}
