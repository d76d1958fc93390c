//! Everything that the database knows about one entry.

use time::OffsetDateTime;

use super::labels::Labels;
use crate::{EntryId, ExceptionState};

/// One entry, in the log or parked, without its payload.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundEntry {
    /// Its position in the log.
    pub id: EntryId,
    /// Its message id.
    pub message_id: String,
    /// Its topic.
    pub topic: String,
    /// Its ordering key.
    pub key: Option<String>,
    /// Its kind and headers.
    pub labels: Labels,
    /// Its content type; `None` if the content no longer exists.
    pub content_type: Option<String>,
    /// Its W3C trace context.
    pub traceparent: Option<String>,
    /// The size of its payload; `None` if the content no longer exists.
    pub payload_bytes: Option<u64>,
    /// When it was enqueued; `None` if the content no longer exists.
    pub enqueued_at: Option<OffsetDateTime>,
    /// The producer's transaction; `None` on SQLite, which does not number transactions, and if the
    /// row no longer exists.
    pub transaction: Option<String>,
    /// The earliest time at which it is published.
    pub deliver_at: Option<OffsetDateTime>,
    /// Whether its row is in the log. A parked entry has a copy that outlives the row.
    pub is_in_log: bool,
    /// Whether the relay's cursor has passed it.
    pub is_passed: bool,
    /// Whether an operator gave it up. An attempt before the decision may have arrived: a
    /// confirmation that comes later is not stored.
    pub is_discarded: bool,
    /// The error that made it dead before an operator discarded it.
    pub discarded_error: Option<String>,
    /// Whether an operator edited it before it was published. The row has the old content.
    pub is_edited: bool,
    /// Why it is parked; `None` if it was published, or has not been read yet.
    pub parked: Option<ParkedState>,
}

/// The payload of an entry as the database stores it. `Debug` prints no content.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredPayload {
    /// Its content type, unchecked.
    pub content_type: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its bytes; `None` when there are more than requested.
    pub payload: Option<Vec<u8>>,
}

impl std::fmt::Debug for StoredPayload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { content_type, bytes, .. } = self;
        f.debug_struct("StoredPayload").field("content_type", content_type).field("bytes", bytes).finish()
    }
}

/// The record of a parked entry.
#[derive(Debug, Clone, PartialEq)]
pub struct ParkedState {
    /// Its state.
    pub state: ExceptionState,
    /// Failed attempts that count.
    pub attempts: u32,
    /// When it is retried or published; `None` for states that do not wait for a time.
    pub due_at: Option<OffsetDateTime>,
    /// The party at fault in the last failure.
    pub fault: Option<String>,
    /// The last error.
    pub error: Option<String>,
    /// Earlier errors, replaced by later ones: up to nine, oldest first.
    pub earlier_errors: Vec<EarlierError>,
    /// When it was parked.
    pub since: OffsetDateTime,
    /// When its state last changed.
    pub changed_at: OffsetDateTime,
    /// When an operator last edited it; `None` if no one has.
    pub edited_at: Option<OffsetDateTime>,
    /// The entry that a held one waits for, if any.
    pub behind: Option<HeldBehind>,
}

/// The entry that a held one waits for: one of the same key, or one of its topic that may stop the
/// topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldBehind {
    /// Its position in the log.
    pub id: EntryId,
    /// Its state: `dead` or `retrying`.
    pub state: String,
    /// Its last error.
    pub error: Option<String>,
    /// Whether it has the key of the held one and so certainly stops it. Otherwise it retries in
    /// the same topic by the broker's or an operator's fault. Then it stops the whole topic if the
    /// failure concerned the topic, and only its own key if it concerned the message. The database
    /// does not store this scope.
    pub is_of_its_key: bool,
}

/// Maximum number of earlier errors that are kept for a parked entry, besides the last one.
pub const EARLIER_ERRORS_MAX: usize = 9;

/// Maximum number of characters that are kept from an earlier error.
pub const EARLIER_ERROR_CHARS_MAX: usize = 500;

/// An error of a parked entry that another one has replaced. The same error again is not a new one:
/// it has the count and the time of its last attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierError {
    /// Failed attempts that counted, up to this one.
    pub attempts: u32,
    /// When the attempt failed.
    pub at: OffsetDateTime,
    /// The first 500 characters of its text.
    pub error: String,
}

impl EarlierError {
    /// Parses a stored list. What cannot be read is left out: an operator still sees the entry.
    pub(crate) fn stored(json: &[u8]) -> Vec<Self> {
        #[derive(serde::Deserialize)]
        struct Stored {
            attempts: u32,
            at: i64,
            error: String,
        }
        // A database without an encoding may have cut a text within a character.
        let list: Vec<Stored> = serde_json::from_str(&String::from_utf8_lossy(json)).unwrap_or_default();
        let read = |Stored { attempts, at, error }: Stored| {
            let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at) * 1_000).ok()?;
            Some(Self { attempts, at, error })
        };
        list.into_iter().filter_map(read).collect()
    }
}
