//! All that the database knows of one entry.

use time::OffsetDateTime;

use super::labels::Labels;
use crate::log::{EntryId, ExceptionState};

/// One entry, in the log or parked. Its payload is not in it.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundEntry {
    /// Its place in the log.
    pub id: EntryId,
    /// Its message id.
    pub message_id: String,
    /// Its topic.
    pub topic: String,
    /// Its ordering key.
    pub key: Option<String>,
    /// Its kind and headers.
    pub labels: Labels,
    /// Its content type; `None` when its content is gone.
    pub content_type: Option<String>,
    /// Its W3C trace context.
    pub traceparent: Option<String>,
    /// The size of its payload; `None` when its content is gone.
    pub payload_bytes: Option<u64>,
    /// When it was enqueued; `None` when its content is gone.
    pub enqueued_at: Option<OffsetDateTime>,
    /// The producer's transaction; `None` on SQLite, which does not number them, and when its row
    /// is gone.
    pub transaction: Option<String>,
    /// The time before which it does not leave.
    pub deliver_at: Option<OffsetDateTime>,
    /// Whether its row is in the log; a parked entry has a copy that outlives it.
    pub is_in_log: bool,
    /// Whether the relay's cursor has passed it.
    pub is_passed: bool,
    /// Whether an operator gave it up: it was never published.
    pub is_discarded: bool,
    /// The error for which it was dead when an operator gave it up.
    pub discarded_error: Option<String>,
    /// Whether an operator has edited it before it left: its row has other content.
    pub is_edited: bool,
    /// Why it has not simply left; `None` when it has, or has yet to be read.
    pub parked: Option<ParkedState>,
}

/// The payload of an entry as the database has it. `Debug` prints no content.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredPayload {
    /// Its content type, unchecked.
    pub content_type: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its bytes; `None` when they are more than were asked for.
    pub payload: Option<Vec<u8>>,
}

impl std::fmt::Debug for StoredPayload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { content_type, bytes, .. } = self;
        f.debug_struct("StoredPayload").field("content_type", content_type).field("bytes", bytes).finish()
    }
}

/// The record about an entry that did not simply leave.
#[derive(Debug, Clone, PartialEq)]
pub struct ParkedState {
    /// Its state.
    pub state: ExceptionState,
    /// Failed attempts that counted.
    pub attempts: u32,
    /// When it is tried, or leaves; `None` for states that wait for something else.
    pub due_at: Option<OffsetDateTime>,
    /// Whose fault the last failure was.
    pub fault: Option<String>,
    /// The last error.
    pub error: Option<String>,
    /// Since when it is parked.
    pub since: OffsetDateTime,
    /// When its state changed last.
    pub changed_at: OffsetDateTime,
    /// Whether an operator has edited it.
    pub is_edited: bool,
    /// The entry that a held one waits for, where there is one.
    pub behind: Option<HeldBehind>,
}

/// The entry that a held one waits for: of its key, or the one that finds out about its topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldBehind {
    /// Its place in the log.
    pub id: EntryId,
    /// Its state: `dead` or `retrying`.
    pub state: String,
    /// Its last error.
    pub error: Option<String>,
}
