//! One row of the log.

use std::fmt;
use std::time::Duration;

use message::{HEADER_VALUE_BYTES_MAX, HEADERS_MAX, Message, SizeLimit, TEXT_BYTES_MAX};

/// The position of an entry in its log: the row's `id`. Ids ascend by allocation, not by commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EntryId(pub i64);

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A committed row of the log.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The position.
    pub id: EntryId,
    /// The message, or why the row is not a valid one: plain SQL can write any value that the
    /// columns accept.
    pub message: Result<Message, InvalidEntry>,
    /// The remaining wait, by the database's clock; `None` if the message may be published now.
    pub deliver_in: Option<Duration>,
}

/// A row that is not a valid message. It is parked for an operator.
///
/// A byte that is not UTF-8 appears in a text as `U+001A` and two hexadecimal digits. No valid key
/// or topic contains that character. So the entry blocks no other key, and it is still invalid when
/// it is read again from its parked copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidEntry {
    /// The row's message id, as text.
    pub message_id: String,
    /// The row's topic.
    pub topic: String,
    /// The row's key.
    pub key: Option<String>,
    /// The row's kind, or its topic where it has none; `None` when that is not a valid kind, or the
    /// row no longer exists.
    pub kind: Option<String>,
    /// The problem, with the value and the limit.
    pub problem: String,
}

impl Entry {
    /// Returns the topic as text.
    #[must_use]
    pub fn topic(&self) -> &str {
        match &self.message {
            Ok(message) => message.topic.as_str(),
            Err(invalid) => &invalid.topic,
        }
    }

    /// Returns the ordering key as text.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match &self.message {
            Ok(message) => message.key.as_ref().map(message::OrderingKey::as_str),
            Err(invalid) => invalid.key.as_deref(),
        }
    }

    /// Returns the message id as text.
    #[must_use]
    pub fn message_id(&self) -> String {
        match &self.message {
            Ok(message) => message.id.to_string(),
            Err(invalid) => invalid.message_id.clone(),
        }
    }

    /// Returns the bytes that the entry occupies in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.message {
            Ok(message) => message.wire_bytes(),
            Err(invalid) => 512 + invalid.problem.len(),
        }
    }
}

/// The maximum of one read. It returns at least one entry when there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLimit {
    /// Maximum entries.
    pub entries_max: usize,
    /// Maximum bytes of payloads and headers. A single entry above it is returned alone.
    pub bytes_max: usize,
    /// The largest row that is read in full.
    pub row: RowLimit,
}

/// The largest row that is read in full. Of a larger row only the lengths are read: it becomes an
/// [`InvalidEntry`] that names them, and takes no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowLimit {
    /// The largest payload.
    pub payload: SizeLimit,
    /// The largest message whose headers are read. As JSON they may be twice as long, because of
    /// quotation marks, commas and escapes that are not sent.
    pub headers: SizeLimit,
}

impl RowLimit {
    /// Makes a limit for messages whose payloads and headers have the same limit.
    #[must_use]
    pub const fn of(limit: SizeLimit) -> Self {
        Self { payload: limit, headers: limit }
    }

    /// Returns the longest headers that are read, in bytes of JSON.
    pub(crate) fn headers_bytes_max(&self) -> usize {
        const LARGEST: usize = HEADERS_MAX * (TEXT_BYTES_MAX + HEADER_VALUE_BYTES_MAX);
        self.headers.message_bytes_max.min(LARGEST).saturating_mul(2)
    }

    /// Returns why a row with these lengths is not read, or `None` when it is.
    pub(crate) fn refusal(&self, lengths: Lengths) -> Option<String> {
        let Lengths { payload, headers } = lengths;
        let SizeLimit { destination, message_bytes_max } = self.payload;
        if payload > message_bytes_max {
            return Some(format!(
                "a payload of {payload} bytes; {destination} takes at most {message_bytes_max}: shorten it, store it \
                 elsewhere and send a reference, or raise the limit"
            ));
        }
        let SizeLimit { destination, message_bytes_max } = self.headers;
        (headers > self.headers_bytes_max()).then(|| {
            format!(
                "headers of {} bytes as JSON; {destination} takes messages of at most {message_bytes_max}: shorten them",
                AtLeast(headers)
            )
        })
    }
}

/// The longest headers whose length is measured, in bytes of JSON. The database itself cannot
/// convert much longer ones to text.
pub(crate) const HEADERS_BYTES_MAX: usize = 128 << 20;

/// The lengths of a row's payload and headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Lengths {
    /// Bytes of the payload.
    pub(crate) payload: usize,
    /// Bytes of the headers as JSON, and of the trace state.
    pub(crate) headers: usize,
}

/// A length that is exact up to [`HEADERS_BYTES_MAX`].
struct AtLeast(usize);

impl fmt::Display for AtLeast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes > HEADERS_BYTES_MAX => write!(f, "more than {HEADERS_BYTES_MAX}"),
            bytes => bytes.fmt(f),
        }
    }
}

/// Consecutive entries in the order of their ids.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Whether no entry follows.
    pub exhausted: bool,
}
