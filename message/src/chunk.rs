//! The place of a chunk in its message. Pure.
//!
//! A message larger than its destination accepts is [split](crate::Splitter) under its own id. Each
//! chunk is a message with the envelope of the whole, a part of the payload, and a [`Chunk`] that
//! says which part. The split follows from two numbers: a payload of `bytes` in `count` chunks
//! has ⌈bytes / count⌉ bytes in each chunk and the rest in the last. So chunks with the same count
//! and fingerprint always fit together, no matter who split the message and when. Chunks of two
//! splits (the limit changed in between) differ in their count.

use std::borrow::Cow;
use std::ops::Range;

use crate::fingerprint::Fingerprint;

/// The largest number of chunks of one message.
pub const CHUNKS_MAX: u32 = 4_096;

/// The default for the largest message in chunks, in bytes: for the relay that splits it and the
/// inbox that reassembles it.
pub const CHUNKED_BYTES_MAX_DEFAULT: usize = 64 << 20;

/// The largest message in chunks that can be configured, in bytes.
pub const CHUNKED_BYTES_MAX: usize = 512 << 20;

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
}

#[cfg(test)]
#[path = "chunk_tests.rs"]
mod tests;
