//! Rows as records, the same for every database.

use migrations::query::{RawText, Row};
use outbox::Signature;
use sqlx::error::UnexpectedNullError;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::admin::entry::due;
use crate::admin::status::Counted;
use crate::admin::{
    AuditQuery, AuditRecord, AuditSlice, AuditedDecision, ChosenEntry, CountedError, DecidedEntry,
    DecisionRecord, EditRecord, FoundParked, ListedEntry, Operation, ParkedContent, ParkedGroup,
    StandingCount,
};
use crate::dialect::Dialect;
use crate::entries::lag::Lagging;
use crate::entries::{
    EarlierError, FoundEntry, HeldBehind, Labels, ParkedState, SelectedEntry, Standing, StoredPayload,
};
use crate::row::wait;
use crate::{EntryId, ExceptionState, LogError, Pause, PauseScope, text};

/// Reads a text that may not be UTF-8, for display to an operator.
fn shown<DB: Dialect>(row: &Row<DB>, column: &str) -> Result<String, sqlx::Error> {
    row.get(column).map(|RawText(bytes)| text::shown(&bytes))
}

/// Like [`shown`], for a column that may be null.
fn shown_if_any<DB: Dialect>(row: &Row<DB>, column: &str) -> Result<Option<String>, sqlx::Error> {
    let bytes: Option<RawText> = row.get(column)?;
    Ok(bytes.map(|RawText(bytes)| text::shown(&bytes)))
}

/// Reads a text that may not be UTF-8 as its bytes, for a column that may be null.
fn bytes_if_any<DB: Dialect>(row: &Row<DB>, column: &str) -> Result<Option<Vec<u8>>, sqlx::Error> {
    let bytes: Option<RawText> = row.get(column)?;
    Ok(bytes.map(|RawText(bytes)| bytes))
}

/// Reads a time, as [`Dialect::time`] does; null is an error.
pub(crate) fn time<DB: Dialect>(row: &Row<DB>, column: &str) -> Result<OffsetDateTime, sqlx::Error> {
    DB::time(row, column)?.ok_or_else(|| sqlx::Error::ColumnDecode {
        index: format!("{column:?}"),
        source: UnexpectedNullError.into(),
    })
}

/// Reads a count; a negative one counts as 0.
fn count<DB: Dialect>(row: &Row<DB>, column: &str) -> Result<u64, sqlx::Error> {
    row.get(column).map(|number: i64| u64::try_from(number).unwrap_or_default())
}

fn attempts<DB: Dialect>(row: &Row<DB>) -> Result<u32, sqlx::Error> {
    row.get("attempts").map(|number: i64| u32::try_from(number).unwrap_or_default())
}

fn labels<DB: Dialect>(row: &Row<DB>) -> Result<Labels, sqlx::Error> {
    let headers: Option<RawText> = row.get("headers")?;
    let headers = headers.as_ref().map(|RawText(json)| json.as_slice());
    Ok(Labels::read(shown(row, "kind")?, headers))
}

pub(crate) fn counted_error<DB: Dialect>(
    row: &Row<DB>,
    state: ExceptionState,
) -> Result<CountedError, sqlx::Error> {
    Ok(CountedError { state, error: shown(row, "error")?, count: count(row, "entries")? })
}

pub(crate) fn pause<DB: Dialect>(row: &Row<DB>) -> Result<Pause, LogError> {
    let failed = || LogError::during("read the pauses");
    Ok(Pause {
        scope: paused_scope(row)?,
        actor: row.get("actor").map_err(failed())?,
        reason: row.get("reason").map_err(failed())?,
        since: time(row, "paused_at").map_err(failed())?,
        age: wait(row.get("age").map_err(failed())?).unwrap_or_default(),
    })
}

pub(crate) fn paused_scope<DB: Dialect>(row: &Row<DB>) -> Result<PauseScope, LogError> {
    let failed = || LogError::during("read the pauses");
    let kind: String = row.get("kind").map_err(failed())?;
    PauseScope::stored(&kind, row.get("name").map_err(failed())?)
}

pub(crate) fn operation<DB: Dialect>(row: &Row<DB>) -> Result<Operation, sqlx::Error> {
    Ok(Operation {
        number: row.get("seq")?,
        at: time(row, "at")?,
        signature: Signature::read(row)?,
        action: row.get("action")?,
        subject: (),
    })
}

pub(crate) fn decision<DB: Dialect>(row: &Row<DB>) -> Result<AuditRecord, sqlx::Error> {
    Ok(AuditRecord {
        number: row.get("seq")?,
        at: time(row, "at")?,
        signature: Signature::read(row)?,
        action: row.get("action")?,
        subject: DecidedEntry {
            id: EntryId(row.get("id")?),
            message_id: row.get("message_id")?,
            digest_before: row.get("digest_before")?,
            digest_after: row.get("digest_after")?,
            error: row.get("error")?,
        },
    })
}

/// Reads a slice of an audit. Each row has the end of the walk, and one decision or none.
pub(crate) fn decided<DB: Dialect>(found: &[Row<DB>], asked: &AuditQuery) -> Result<AuditSlice, sqlx::Error> {
    let Some(end) = found.first() else {
        return Ok(AuditSlice { decisions: Vec::new(), next: None, seen_back_to: None });
    };
    let scanned: u64 = count(end, "scanned")?;
    let seen_to: Option<i64> = end.get("seen_to")?;
    let mut decisions = Vec::with_capacity(found.len());
    for row in found {
        if row.get::<Option<i64>>("seq")?.is_some() {
            let id: Option<String> = row.get("decision")?;
            let id = id.and_then(|id| Uuid::parse_str(&id).ok());
            decisions.push(AuditedDecision { last: decision(row)?, id, entries: count(row, "entries")? });
        }
    }
    // The limit can have cut off decisions of these rows.
    let last = decisions.last().filter(|_| decisions.len() >= asked.decisions_max as usize);
    let next = match last {
        Some(decision) => Some(decision.last.number),
        None => seen_to.filter(|_| scanned >= u64::from(asked.rows_max)),
    };
    let seen_back_to = match last {
        Some(decision) => Some(decision.last.at),
        None => DB::time(end, "seen_back_to")?,
    };
    Ok(AuditSlice { decisions, next, seen_back_to })
}

pub(crate) fn content<DB: Dialect>(row: &Row<DB>) -> Result<ParkedContent, sqlx::Error> {
    Ok(ParkedContent {
        payload_bytes: count(row, "payload_bytes")?,
        payload: row.get("payload")?,
        headers: bytes_if_any(row, "headers")?,
        has_headers: row.get("has_headers")?,
    })
}

pub(crate) fn edit<DB: Dialect>(row: &Row<DB>) -> Result<EditRecord, sqlx::Error> {
    Ok(EditRecord {
        message_id: row.get("message_id")?,
        payload_before: row.get("payload_before")?,
        headers_before: bytes_if_any(row, "headers_before")?,
        payload_after: row.get("payload_after")?,
        headers_after: bytes_if_any(row, "headers_after")?,
    })
}

pub(crate) fn listed<DB: Dialect>(row: &Row<DB>) -> Result<ListedEntry, sqlx::Error> {
    Ok(ListedEntry {
        id: EntryId(row.get("id")?),
        message_id: row.get("message_id")?,
        topic: shown(row, "topic")?,
        key: shown_if_any(row, "key")?,
        kind: shown(row, "kind")?,
        attempts: attempts(row)?,
        due_in: due(row.get("due_in")?),
        fault: row.get("fault")?,
        error: row.get("error")?,
        created_at: time(row, "created_at")?,
        updated_at: time(row, "updated_at")?,
        payload_bytes: count(row, "payload_bytes")?,
        edited: row.get("edited")?,
        edited_at: DB::time(row, "edited_at")?,
        died_again: row.get("died_again")?,
    })
}

pub(crate) fn found_parked<DB: Dialect>(row: &Row<DB>) -> Result<FoundParked, sqlx::Error> {
    Ok(FoundParked {
        chosen: ChosenEntry {
            id: EntryId(row.get("id")?),
            message_id: row.get("message_id")?,
            edited_at: DB::time(row, "edited_at")?,
        },
        topic: shown(row, "topic")?,
        created_at: time(row, "created_at")?,
        error: shown_if_any(row, "error")?,
    })
}

pub(crate) fn parked_group<DB: Dialect>(row: &Row<DB>) -> Result<ParkedGroup, sqlx::Error> {
    Ok(ParkedGroup {
        topic: shown(row, "topic")?,
        fault: row.get("fault")?,
        error: shown_if_any(row, "error")?,
        count: count(row, "entries")?,
        first: time(row, "first")?,
        last: time(row, "last")?,
    })
}

pub(crate) fn decision_record<DB: Dialect>(
    row: &Row<DB>,
    now: Vec<StandingCount>,
) -> Result<DecisionRecord, sqlx::Error> {
    Ok(DecisionRecord {
        signature: Signature::read(row)?,
        action: row.get("action")?,
        count: count(row, "entries")?,
        first: time(row, "first")?,
        last: time(row, "last")?,
        now,
    })
}

pub(crate) fn standing_count<DB: Dialect>(row: &Row<DB>) -> Result<StandingCount, sqlx::Error> {
    let state: Option<String> = row.get("state")?;
    Ok(StandingCount { state: state.and_then(|word| word.parse().ok()), count: count(row, "entries")? })
}

pub(crate) fn counted<DB: Dialect>(row: &Row<DB>) -> Result<Counted, sqlx::Error> {
    Ok(Counted {
        state: row.get("state")?,
        fault: row.get("fault")?,
        is_due: row.get("is_due")?,
        entries: count(row, "entries")?,
        first: EntryId(row.get("first")?),
        since_due: row.get("since_due")?,
        longest: row.get("longest")?,
    })
}

pub(crate) fn lagging<DB: Dialect>(row: &Row<DB>) -> Result<Lagging, sqlx::Error> {
    Ok(Lagging {
        topic: shown(row, "topic")?,
        state: row.get("state")?,
        is_due: row.get("is_due")?,
        entries: count(row, "entries")?,
        longest: row.get("longest")?,
    })
}

pub(crate) fn payload<DB: Dialect>(row: &Row<DB>) -> Result<StoredPayload, sqlx::Error> {
    Ok(StoredPayload {
        content_type: shown(row, "content_type")?,
        bytes: count(row, "bytes")?,
        payload: row.get("payload")?,
    })
}

/// Reads a found entry. The outer error is the client library's; the inner one concerns the
/// content.
pub(crate) fn found<DB: Dialect>(row: &Row<DB>) -> Result<Result<FoundEntry, LogError>, sqlx::Error> {
    let state: Option<String> = row.get("state")?;
    let parked = match state.as_deref().map(ExceptionState::stored) {
        None => None,
        Some(Err(error)) => return Ok(Err(error)),
        Some(Ok(state)) => Some(parked(row, state)?),
    };
    let bytes: Option<i64> = row.get("payload_bytes")?;
    Ok(Ok(FoundEntry {
        id: EntryId(row.get("id")?),
        message_id: shown(row, "message_id")?,
        topic: shown(row, "topic")?,
        key: shown_if_any(row, "key")?,
        labels: labels(row)?,
        content_type: shown_if_any(row, "content_type")?,
        traceparent: shown_if_any(row, "traceparent")?,
        payload_bytes: bytes.and_then(|bytes| u64::try_from(bytes).ok()),
        enqueued_at: DB::time(row, "enqueued_at")?,
        transaction: row.get("transaction")?,
        deliver_at: DB::time(row, "deliver_at")?,
        is_in_log: row.get("is_in_log")?,
        is_passed: row.get("passed")?,
        is_discarded: row.get("was_discarded")?,
        discarded_error: row.get("discarded_error")?,
        is_edited: row.get("was_edited")?,
        parked,
    }))
}

fn parked<DB: Dialect>(row: &Row<DB>, state: ExceptionState) -> Result<ParkedState, sqlx::Error> {
    let behind: Option<i64> = row.get("behind_id")?;
    let behind = match behind {
        None => None,
        Some(id) => Some(HeldBehind {
            id: EntryId(id),
            state: row.get("behind_state")?,
            error: row.get("behind_error")?,
            is_of_its_key: row.get("behind_key")?,
        }),
    };
    let earlier: Option<RawText> = row.get("earlier_errors")?;
    Ok(ParkedState {
        state,
        attempts: attempts(row)?,
        due_at: DB::time(row, "due_at")?,
        fault: row.get("fault")?,
        error: row.get("error")?,
        earlier_errors: earlier.map(|RawText(json)| EarlierError::stored(&json)).unwrap_or_default(),
        since: time(row, "created_at")?,
        changed_at: time(row, "updated_at")?,
        edited_at: DB::time(row, "edited_at")?,
        behind,
    })
}

/// Reads a chosen entry. The errors are those of [`found`].
pub(crate) fn selected<DB: Dialect>(row: &Row<DB>) -> Result<Result<SelectedEntry, LogError>, sqlx::Error> {
    let state: Option<String> = row.get("state")?;
    let state = match state.as_deref().map(ExceptionState::stored).transpose() {
        Ok(state) => state,
        Err(error) => return Ok(Err(error)),
    };
    let is_passed = row.get("passed")?;
    let is_discarded = row.get("discarded")?;
    let is_edited = row.get("edited")?;
    Ok(Ok(SelectedEntry {
        id: EntryId(row.get("id")?),
        // A row without an id was never published. It is identified by its position.
        message_id: Uuid::parse_str(&shown(row, "message_id")?).unwrap_or_default(),
        topic: shown(row, "topic")?,
        key: shown_if_any(row, "key")?,
        labels: labels(row)?,
        payload_bytes: count(row, "payload_bytes")?,
        enqueued_at: time(row, "enqueued_at")?,
        standing: Standing::of(is_passed, state, is_discarded, is_edited),
    }))
}
