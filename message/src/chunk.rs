//! Messages in chunks: a message larger than its destination accepts is split under its own id.
//! Pure.
//!
//! Each chunk is a message with the envelope of the whole, a part of the payload, and a [`Chunk`]
//! that says which part. The split follows from two numbers: a payload of `bytes` in `count` chunks
//! has ⌈bytes / count⌉ bytes in each chunk and the rest in the last. So chunks with the same count
//! and fingerprint always fit together, no matter who split the message and when. Chunks of two
//! splits (the limit changed in between) differ in their count.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;

use crate::fingerprint::Fingerprint;
use crate::limits::{Oversize, SizeLimit};
use crate::message::Message;

/// The largest number of chunks of one message.
pub const CHUNKS_MAX: u32 = 4_096;

/// The default for the largest message in chunks, in bytes: for the relay that splits it and the
/// inbox that reassembles it.
pub const CHUNKED_BYTES_MAX_DEFAULT: usize = 64 << 20;

/// The largest message in chunks that can be configured, in bytes.
pub const CHUNKED_BYTES_MAX: usize = 512 << 20;

/// The smallest room for payload beside the envelope, in bytes. With less, a message is not split.
const PIECE_BYTES_MIN: usize = 512;

/// The CloudEvents extension attributes of a chunk, without any binding's prefix.
pub const CHUNK_ATTRIBUTES: [&str; 4] = ["chunkindex", "chunkcount", "chunkbytes", "chunkfingerprint"];

/// A chunk's place in its whole message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    index: u32,
    count: u32,
    bytes: u64,
    fingerprint: Fingerprint,
}

/// Attributes of a chunk that contradict each other, its payload or the limits. The message's
/// fault; not retryable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidChunk {
    /// The number of chunks is 0 or above [`CHUNKS_MAX`].
    #[error("a message in {count} chunks is not accepted; the number must be 1 to {CHUNKS_MAX}")]
    Count {
        /// The number given.
        count: u32,
    },
    /// The index is not below the number of chunks.
    #[error("chunk {index} of {count}: the index must be less than the count")]
    Index {
        /// The index given.
        index: u32,
        /// The number of chunks.
        count: u32,
    },
    /// The payload cannot fill this many chunks, or is too large.
    #[error("{bytes} bytes cannot be split into {count} non-empty chunks, or are too many")]
    Split {
        /// The bytes of the whole payload.
        bytes: u64,
        /// The number of chunks.
        count: u32,
    },
    /// The chunk's payload does not have the length that its attributes promise.
    #[error(
        "chunk {index} of {count} has {found} bytes; in a payload of {bytes} bytes it must have {expected}"
    )]
    Length {
        /// The index.
        index: u32,
        /// The number of chunks.
        count: u32,
        /// The bytes of the whole payload.
        bytes: u64,
        /// The bytes that the chunk should hold.
        expected: u64,
        /// The bytes that it holds.
        found: u64,
    },
    /// An attribute is missing or invalid.
    #[error("the attribute {name} of a chunk is {}; send {expected}", .found.as_deref().unwrap_or("missing"))]
    Attribute {
        /// The attribute.
        name: &'static str,
        /// The beginning of its value, if there is one.
        found: Option<String>,
        /// The values that are accepted.
        expected: &'static str,
    },
}

impl Chunk {
    /// Makes chunk `index` (from 0) of `count`. The whole message has `bytes` bytes of payload and
    /// this fingerprint.
    ///
    /// # Errors
    /// [`InvalidChunk`]: the count, the index or the split is impossible.
    pub fn new(index: u32, count: u32, bytes: u64, fingerprint: Fingerprint) -> Result<Self, InvalidChunk> {
        if !(1..=CHUNKS_MAX).contains(&count) {
            return Err(InvalidChunk::Count { count });
        }
        if index >= count {
            return Err(InvalidChunk::Index { index, count });
        }
        // The last chunk must not be empty: otherwise a smaller count would give the same split.
        let piece = bytes.div_ceil(u64::from(count));
        if bytes > CHUNKED_BYTES_MAX as u64 || piece * u64::from(count - 1) >= bytes {
            return Err(InvalidChunk::Split { bytes, count });
        }
        Ok(Self { index, count, bytes, fingerprint })
    }

    /// Returns the index of the chunk, from 0.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the number of chunks.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether it is the last chunk.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.index + 1 == self.count
    }

    /// Returns the length of the whole payload, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the fingerprint of the whole message: [`Fingerprint::of`] before it was split.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Returns the bytes of the whole payload that this chunk holds.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        let piece = self.bytes.div_ceil(u64::from(self.count));
        let start = piece * u64::from(self.index);
        start..(start + piece).min(self.bytes)
    }

    /// Checks that the payload of this chunk has the right length.
    ///
    /// # Errors
    /// [`InvalidChunk::Length`].
    pub fn check(&self, payload_bytes: usize) -> Result<(), InvalidChunk> {
        let Range { start, end } = self.range();
        let (expected, found) = (end - start, payload_bytes as u64);
        if expected == found {
            return Ok(());
        }
        let Self { index, count, bytes, .. } = *self;
        Err(InvalidChunk::Length { index, count, bytes, expected, found })
    }

    /// Returns the attributes, in the order of [`CHUNK_ATTRIBUTES`].
    pub(crate) fn attributes(&self) -> [(&'static str, Cow<'static, str>); 4] {
        let [index, count, bytes, fingerprint] = CHUNK_ATTRIBUTES;
        [
            (index, Cow::Owned(self.index.to_string())),
            (count, Cow::Owned(self.count.to_string())),
            (bytes, Cow::Owned(self.bytes.to_string())),
            (fingerprint, Cow::Owned(self.fingerprint.to_string())),
        ]
    }

    /// Reads the attributes; `None` when all are missing. A message with only some of them is an
    /// error, because a fragment would otherwise be applied as a whole message.
    pub(crate) fn read<'a>(
        attribute: impl Fn(&str) -> Option<&'a str>,
        payload_bytes: usize,
    ) -> Result<Option<Self>, InvalidChunk> {
        if CHUNK_ATTRIBUTES.iter().all(|name| attribute(name).is_none()) {
            return Ok(None);
        }
        let [index, count, bytes, fingerprint] = CHUNK_ATTRIBUTES;
        let required =
            |name, expected| attribute(name).ok_or(InvalidChunk::Attribute { name, found: None, expected });
        let wrong = |name, value: &str, expected| InvalidChunk::Attribute {
            name,
            found: Some(format!("{:?}", value.chars().take(64).collect::<String>())),
            expected,
        };
        let number = |name| {
            let (expected, value) = ("a whole number", required(name, "a whole number")?);
            value.parse::<u64>().map_err(|_| wrong(name, value, expected))
        };
        let small =
            |name| u32::try_from(number(name)?).map_err(|_| wrong(name, "a huge number", "a smaller one"));
        let digest = required(fingerprint, "64 hexadecimal digits")?;
        let digest = digest.parse().map_err(|_| wrong(fingerprint, digest, "64 hexadecimal digits"))?;
        let chunk = Self::new(small(index)?, small(count)?, number(bytes)?, digest)?;
        chunk.check(payload_bytes)?;
        Ok(Some(chunk))
    }

    /// Returns the whole message, from the envelope of any of its chunks and the payloads of all
    /// chunks in order.
    ///
    /// # Errors
    /// The fingerprint of the assembled message, when it differs from the one in the chunks.
    pub fn assemble(&self, envelope: &Message, payload: impl Into<Bytes>) -> Result<Message, Fingerprint> {
        let whole = Message { payload: payload.into(), chunk: None, ..envelope.clone() };
        let found = Fingerprint::of(&whole);
        if found == self.fingerprint { Ok(whole) } else { Err(found) }
    }
}

/// The encoding of payloads at a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadEncoding {
    /// The bytes as they are.
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
    /// Splits a message into chunks, which share its payload; `None` when it fits as it is.
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

    /// Checks whether the message can leave, whole or in chunks.
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
        self.room(message.envelope_bytes() + crate::message::CHUNK_BYTES)
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

#[cfg(test)]
#[path = "chunk_tests.rs"]
mod tests;
