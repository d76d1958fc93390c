//! Messages in chunks: splits those that are larger than a destination accepts, and assembles them
//! again. Pure.

use std::ops::Range;

use bytes::Bytes;

use crate::chunk::{CHUNKS_MAX, Chunk};
use crate::fingerprint::Fingerprint;
use crate::limits::{Oversize, SizeLimit};
use crate::message::{CHUNK_BYTES, Message};

/// The smallest room for payload beside the envelope, in bytes. With less, a message is not split.
const PIECE_BYTES_MIN: usize = 512;

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
    /// Splits a message into chunks, which share its payload; `None` if it fits without splitting.
    ///
    /// # Errors
    /// [`Oversize`]: the message exceeds `chunked_bytes_max` or [`CHUNKS_MAX`] chunks, or its
    /// headers leave no room.
    pub fn split(&self, message: &Message) -> Result<Option<Vec<Message>>, Oversize> {
        self.check(message)?;
        if message.payload.len() <= self.room(message.envelope_bytes()) {
            return Ok(None);
        }
        let piece = self.piece(message);
        let (bytes, count) = (message.payload.len(), message.payload.len().div_ceil(piece.max(1)));
        let fingerprint = Fingerprint::of(message);
        let refused = |_| self.oversize(message);
        let count = u32::try_from(count).map_err(|_| self.oversize(message))?;
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
        let fits = message.payload.len() <= self.room(message.envelope_bytes());
        let piece = self.piece(message);
        let chunks_max = CHUNKS_MAX as usize;
        let splits = piece >= PIECE_BYTES_MIN && message.payload.len().div_ceil(piece) <= chunks_max;
        let within = message.wire_bytes() <= self.chunked_bytes_max;
        if fits || (splits && within) { Ok(()) } else { Err(self.oversize(message)) }
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
