//! One row of the log.

use std::fmt;
use std::time::Duration;

use message::header::{HEADER_VALUE_BYTES_MAX, HEADERS_MAX};
use message::text::TEXT_BYTES_MAX;
use message::{Message, SizeLimit};

/// The place of an entry in its log: the row's `id`. Ascends with allocation, not with commit.
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
    /// Its place.
    pub id: EntryId,
    /// The message, or why the row is none: rows written with plain SQL can hold anything the
    /// columns take.
    pub message: Result<Message, InvalidEntry>,
    /// How long it still has to wait by the database's clock; `None` when it may leave now.
    pub deliver_in: Option<Duration>,
}

/// A row that is not a valid message; it is parked for an operator.
///
/// A byte that is not UTF-8 stands in a text as `U+001A` and two hexadecimal digits. No valid key
/// or topic has that character: the entry blocks no other key, and stays invalid when it is read
/// again from where it is parked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidEntry {
    /// The row's message id, as text.
    pub message_id: String,
    /// The row's topic.
    pub topic: String,
    /// The row's key.
    pub key: Option<String>,
    /// The row's kind, or its topic where it has none; `None` when that is no kind, or the row is
    /// gone.
    pub kind: Option<String>,
    /// The problem, with the value and the limit.
    pub problem: String,
}

impl Entry {
    /// The topic as text.
    #[must_use]
    pub fn topic(&self) -> &str {
        match &self.message {
            Ok(message) => message.topic.as_str(),
            Err(invalid) => &invalid.topic,
        }
    }

    /// The ordering key as text.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match &self.message {
            Ok(message) => message.key.as_ref().map(message::OrderingKey::as_str),
            Err(invalid) => invalid.key.as_deref(),
        }
    }

    /// The message id as text.
    #[must_use]
    pub fn message_id(&self) -> String {
        match &self.message {
            Ok(message) => message.id.to_string(),
            Err(invalid) => invalid.message_id.clone(),
        }
    }

    /// Returns the bytes that the entry takes in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.message {
            Ok(message) => message.wire_bytes(),
            Err(invalid) => 512 + invalid.problem.len(),
        }
    }
}

/// How much one read may bring. At least one entry comes when there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLimit {
    /// Maximum entries.
    pub entries_max: usize,
    /// Maximum bytes of payloads and headers. One entry above it comes alone.
    pub bytes_max: usize,
    /// The largest row that is read.
    pub row: RowLimit,
}

/// The largest row that is read. Of a larger one only the lengths are read: it comes as an
/// [`InvalidEntry`] that names them, and takes no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowLimit {
    /// The largest payload.
    pub payload: SizeLimit,
    /// The largest message whose headers are read. As JSON they may be twice as long: quotation
    /// marks, commas and escapes do not travel.
    pub headers: SizeLimit,
}

impl RowLimit {
    /// Payloads and headers of messages within one limit.
    #[must_use]
    pub const fn of(limit: SizeLimit) -> Self {
        Self { payload: limit, headers: limit }
    }

    /// The longest headers that are read, in bytes of JSON.
    pub(crate) fn headers_bytes_max(&self) -> usize {
        const LARGEST: usize = HEADERS_MAX * (TEXT_BYTES_MAX + HEADER_VALUE_BYTES_MAX);
        self.headers.message_bytes_max.min(LARGEST).saturating_mul(2)
    }

    /// Returns why a row of these lengths is not read, if it is not.
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

/// The longest headers that are measured, in bytes of JSON. The database itself fails to write much
/// longer ones as text.
pub(crate) const HEADERS_BYTES_MAX: usize = 128 << 20;

/// The lengths of what a row holds besides its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Lengths {
    /// Bytes of the payload.
    pub(crate) payload: usize,
    /// Bytes of the headers as JSON, and of the trace state.
    pub(crate) headers: usize,
}

/// A length that was not measured above [`HEADERS_BYTES_MAX`].
struct AtLeast(usize);

impl fmt::Display for AtLeast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes > HEADERS_BYTES_MAX => write!(f, "more than {HEADERS_BYTES_MAX}"),
            bytes => bytes.fmt(f),
        }
    }
}

/// A run of entries in the order of their ids.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Whether nothing follows.
    pub exhausted: bool,
}
