//! Parked entries, and what was decided about them.

use std::time::Duration;

use time::OffsetDateTime;

use crate::log::EntryId;

/// A parked entry. Its payload is not listed; [`ListedEntry::payload_bytes`] tells its size.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedEntry {
    /// Its place in the log.
    pub id: EntryId,
    /// Its message id.
    pub message_id: String,
    /// Its topic.
    pub topic: String,
    /// Its ordering key.
    pub key: Option<String>,
    /// Its CloudEvents type.
    pub kind: String,
    /// Failed attempts that counted.
    pub attempts: u32,
    /// How long until it is due; `None` for states that wait for something else, zero when it is
    /// overdue.
    pub due_in: Option<Duration>,
    /// Whose fault the last failure was.
    pub fault: Option<String>,
    /// The last error; of a discarded entry, who gave it up and why, and why it was dead.
    pub error: Option<String>,
    /// Since when it is parked; of a discarded entry, when it was given up.
    pub created_at: OffsetDateTime,
    /// When its state changed last.
    pub updated_at: OffsetDateTime,
    /// The size of what would be sent.
    pub payload_bytes: u64,
    /// Whether an operator has edited it.
    pub edited: bool,
}

/// One decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    /// When.
    pub at: OffsetDateTime,
    /// Who.
    pub actor: String,
    /// About which entry.
    pub id: EntryId,
    /// Its message id.
    pub message_id: String,
    /// `requeue`, `discard` or `edit`.
    pub action: String,
    /// Why.
    pub note: String,
    /// The filter by which the entry was chosen, and how many it chose, if that was told.
    pub selection: Option<String>,
    /// SHA-256 of payload and headers before an edit.
    pub digest_before: Option<String>,
    /// SHA-256 of payload and headers after an edit.
    pub digest_after: Option<String>,
    /// Why the entry was dead when the decision was made; `None` also of decisions that were made
    /// before it was kept.
    pub error: Option<String>,
}

/// Microseconds since 1970 as a time; the databases accept none that does not fit.
pub(crate) fn at_micros(micros: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1_000)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// Seconds as a wait that may be over.
pub(crate) fn due(seconds: Option<f64>) -> Option<Duration> {
    seconds.map(|seconds| crate::log::row::wait(seconds).unwrap_or_default())
}
