//! Messages in chunks: splits those that are larger than a destination accepts, and assembles them
//! again. Pure.

use std::ops::Range;

use bytes::Bytes;

use crate::chunk::{CHUNKS_MAX, Chunk};
use crate::fingerprint::Fingerprint;
use crate::limits::{Oversize, OversizePart, SizeLimit};
use crate::message::{CHUNK_BYTES, Message};

/// Divisor of the share of a chunk that its envelope may take. Each chunk repeats the envelope, so
/// all chunks of a message have at most about twice the bytes of its payload.
const ENVELOPE_SHARE: usize = 2;

/// The encoding of payloads at a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadEncoding {
    /// The raw bytes.
    Raw,
    /// Base64 inside a JSON text (SQS): four bytes for three. The envelope counts fourfold, because
    /// its texts are repeated and escaped.
    Base64,
}

/// Splits messages that are larger than a destination accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Splitter {
    /// The largest message that the destination accepts.
    pub limit: SizeLimit,
    /// The encoding of payloads there.
    pub encoding: PayloadEncoding,
    /// The largest message in chunks, in bytes with its envelope.
    pub chunked_bytes_max: usize,
}

impl Splitter {
    /// Splits a message into chunks, which share its payload and headers; `None` when it fits as it
    /// is.
    ///
    /// # Errors
    /// [`Oversize`]: the message exceeds `chunked_bytes_max` or [`CHUNKS_MAX`] chunks, or its
    /// headers and envelope exceed half of a chunk.
    pub fn split(&self, message: &Message) -> Result<Option<Vec<Message>>, Oversize> {
        self.check(message)?;
        if self.fits(message) {
            return Ok(None);
        }
        let bytes = message.payload.len();
        let fingerprint = Fingerprint::of(message);
        let refused = |_| self.oversize(message);
        let count = u32::try_from(self.count(message)).map_err(|_| self.oversize(message))?;
        let chunks = (0..count).map(|index| {
            let chunk = Chunk::new(index, count, bytes as u64, fingerprint).map_err(refused)?;
            let Range { start, end } = chunk.range();
            let (start, end) = (usize::try_from(start), usize::try_from(end));
            let payload = message.payload.slice(start.unwrap_or(bytes)..end.unwrap_or(bytes));
            Ok(Message { payload, chunk: Some(Box::new(chunk)), ..message.clone() })
        });
        chunks.collect::<Result<_, _>>().map(Some)
    }

    /// Checks whether the message can be published, whole or in chunks.
    ///
    /// # Errors
    /// [`Oversize`] as for [`split`](Self::split).
    pub fn check(&self, message: &Message) -> Result<(), Oversize> {
        if self.fits(message) {
            return Ok(());
        }
        if message.wire_bytes() > self.chunked_bytes_max {
            return Err(self.oversize(message));
        }
        let envelope = message.envelope_bytes() + CHUNK_BYTES;
        let envelope_max = self.envelope_bytes_max();
        if envelope > envelope_max {
            let Oversize { id, topic, destination, .. } = self.oversize(message);
            let part = OversizePart::Envelope;
            return Err(Oversize { id, topic, part, bytes: envelope, destination, bytes_max: envelope_max });
        }
        if self.count(message) > CHUNKS_MAX as usize { Err(self.oversize(message)) } else { Ok(()) }
    }

    /// Returns an upper estimate of the message's bytes on the wire, in all of its chunks.
    #[must_use]
    pub fn wire_bytes(&self, message: &Message) -> usize {
        if self.fits(message) || self.check(message).is_err() {
            return message.wire_bytes();
        }
        let envelopes = self.count(message).saturating_mul(message.envelope_bytes() + CHUNK_BYTES);
        envelopes.saturating_add(message.payload.len())
    }

    fn fits(&self, message: &Message) -> bool {
        message.payload.len() <= self.room(message.envelope_bytes())
    }

    /// Returns the number of chunks of a message that does not fit.
    fn count(&self, message: &Message) -> usize {
        message.payload.len().div_ceil(self.piece(message).max(1))
    }

    /// Returns the maximum bytes of an envelope that each chunk repeats.
    fn envelope_bytes_max(&self) -> usize {
        let bytes_max = self.limit.message_bytes_max / ENVELOPE_SHARE;
        match self.encoding {
            PayloadEncoding::Raw => bytes_max,
            PayloadEncoding::Base64 => bytes_max / 4,
        }
    }

    /// Returns the maximum payload of a chunk, in bytes.
    fn piece(&self, message: &Message) -> usize {
        self.room(message.envelope_bytes() + CHUNK_BYTES)
    }

    fn room(&self, envelope_bytes: usize) -> usize {
        let bytes_max = self.limit.message_bytes_max;
        match self.encoding {
            PayloadEncoding::Raw => bytes_max.saturating_sub(envelope_bytes),
            PayloadEncoding::Base64 => bytes_max.saturating_sub(4 * envelope_bytes) / 4 * 3,
        }
    }

    fn oversize(&self, message: &Message) -> Oversize {
        let limit = SizeLimit { message_bytes_max: self.chunked_bytes_max, ..self.limit };
        limit.exceeded_by(message)
    }
}

impl Chunk {
    /// Returns the whole message, from the envelope of any of its chunks and the payloads of all
    /// chunks in order.
    ///
    /// # Errors
    /// The fingerprint of the assembled message, when it differs from the one in the chunks.
    pub fn assemble(&self, envelope: &Message, payload: impl Into<Bytes>) -> Result<Message, Fingerprint> {
        let whole = Message { payload: payload.into(), chunk: None, ..envelope.clone() };
        let found = Fingerprint::of(&whole);
        if found == self.fingerprint() { Ok(whole) } else { Err(found) }
    }
}
