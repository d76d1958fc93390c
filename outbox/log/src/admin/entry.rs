//! Parked entries, and the decisions about them.

use std::time::Duration;

use outbox::AuditLine;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::EntryId;

/// A parked entry without its payload; [`ListedEntry::payload_bytes`] has its size.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedEntry {
    /// Its position in the log.
    pub id: EntryId,
    /// Its message id.
    pub message_id: String,
    /// Its topic.
    pub topic: String,
    /// Its ordering key.
    pub key: Option<String>,
    /// Its CloudEvents type.
    pub kind: String,
    /// Failed attempts that count.
    pub attempts: u32,
    /// Time until it is due; `None` for states that do not wait for a time, zero when it is
    /// overdue.
    pub due_in: Option<Duration>,
    /// The party at fault in the last failure.
    pub fault: Option<String>,
    /// The last error. For a discarded entry: who discarded it and why, and why it was dead.
    pub error: Option<String>,
    /// When it was parked; for a discarded entry, when it was discarded.
    pub created_at: OffsetDateTime,
    /// When its state last changed, or an operator last edited it.
    pub updated_at: OffsetDateTime,
    /// The size of the payload that would be sent.
    pub payload_bytes: u64,
    /// Whether an operator has edited it.
    pub edited: bool,
    /// When an operator last edited it; `None` also for a discarded entry.
    pub edited_at: Option<OffsetDateTime>,
    /// Whether it is dead although an operator has requeued it: it has died again.
    pub died_again: bool,
}

/// A decision about an entry, as the audit stores it: `requeue`, `discard` or `edit`.
pub type AuditRecord = AuditLine<String, DecidedEntry>;

/// The entry of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecidedEntry {
    /// The entry.
    pub id: EntryId,
    /// Its message id.
    pub message_id: String,
    /// SHA-256 of payload and headers before an edit.
    pub digest_before: Option<String>,
    /// SHA-256 of payload and headers after an edit.
    pub digest_after: Option<String>,
    /// Why the entry was dead at the time; also `None` for decisions from before this was stored.
    pub error: Option<String>,
}

/// A query for decisions about entries, each once, however many entries it was about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditQuery {
    /// Only records with smaller numbers. A decision that also has larger numbers was probably in
    /// an earlier slice, unless these were stored since: the caller drops decisions that it already
    /// has.
    pub before: i64,
    /// Maximum number of records to look through.
    pub rows_max: u32,
    /// Maximum number of decisions.
    pub decisions_max: u32,
    /// Only decisions of this operator.
    pub actor: Option<String>,
    /// Only this action.
    pub action: Option<String>,
}

/// Some decisions, latest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditSlice {
    /// The decisions.
    pub decisions: Vec<AuditedDecision>,
    /// The number to continue before; `None` when no record is left.
    pub next: Option<i64>,
    /// The time of the last record that was looked through, whether it matched or not; `None` where
    /// no record was left.
    pub seen_back_to: Option<OffsetDateTime>,
}

/// A decision about one or several entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditedDecision {
    /// The last of its records that were looked through.
    pub last: AuditRecord,
    /// Its id; `None` when the entry was decided about by itself.
    pub id: Option<Uuid>,
    /// The number of its entries.
    pub entries: u64,
}

/// Converts microseconds since 1970 into a time. The databases accept no time that does not fit.
pub(crate) fn at_micros(micros: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1_000)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// Converts seconds into a wait; zero when it is over.
pub(crate) fn due(seconds: Option<f64>) -> Option<Duration> {
    seconds.map(|seconds| crate::row::wait(seconds).unwrap_or_default())
}
