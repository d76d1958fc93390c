//! Rows as entries.

use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use crate::admin::entry::at_micros;
use crate::entries::{FoundEntry, HeldBehind, Labels, ParkedState, SelectedEntry, Standing, StoredPayload};
use crate::sqlite::reconcile::uuid;
use crate::sqlite::row::{optional_text, text};
use crate::{EntryId, ExceptionState, LogError};

/// Reads a found entry. The outer error is the client library's; the inner one concerns the
/// content.
pub(super) fn found(row: &SqliteRow) -> Result<Result<FoundEntry, LogError>, sqlx::Error> {
    let time = |name| Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(name)?.map(at_micros));
    let state: Option<String> = row.try_get("state")?;
    let parked = match state.as_deref().map(ExceptionState::stored) {
        None => None,
        Some(Err(error)) => return Ok(Err(error)),
        Some(Ok(state)) => {
            let behind: Option<i64> = row.try_get("behind_id")?;
            let behind = match behind {
                None => None,
                Some(id) => Some(HeldBehind {
                    id: EntryId(id),
                    state: row.try_get("behind_state")?,
                    error: row.try_get("behind_error")?,
                }),
            };
            Some(ParkedState {
                state,
                attempts: u32::try_from(row.try_get::<i64, _>("attempts")?).unwrap_or_default(),
                due_at: time("due_at")?,
                fault: row.try_get("fault")?,
                error: row.try_get("error")?,
                since: at_micros(row.try_get("created_at")?),
                changed_at: at_micros(row.try_get("updated_at")?),
                is_edited: row.try_get("edited")?,
                behind,
            })
        }
    };
    let bytes: Option<i64> = row.try_get("payload_bytes")?;
    Ok(Ok(FoundEntry {
        id: EntryId(row.try_get("id")?),
        message_id: text(row, "message_id")?,
        topic: text(row, "topic")?,
        key: optional_text(row, "key")?,
        labels: Labels::read(text(row, "kind")?, row.try_get("headers")?),
        content_type: optional_text(row, "content_type")?,
        traceparent: optional_text(row, "traceparent")?,
        payload_bytes: bytes.and_then(|bytes| u64::try_from(bytes).ok()),
        enqueued_at: time("enqueued_at")?,
        transaction: None,
        deliver_at: time("deliver_at")?,
        is_in_log: row.try_get("is_in_log")?,
        is_passed: row.try_get("passed")?,
        is_discarded: row.try_get("was_discarded")?,
        discarded_error: row.try_get("discarded_error")?,
        is_edited: row.try_get("was_edited")?,
        parked,
    }))
}

pub(super) fn stored_payload(row: &SqliteRow) -> Result<StoredPayload, sqlx::Error> {
    Ok(StoredPayload {
        content_type: text(row, "content_type")?,
        bytes: u64::try_from(row.try_get::<i64, _>("bytes")?).unwrap_or_default(),
        payload: row.try_get("payload")?,
    })
}

pub(super) fn selected(row: &SqliteRow) -> Result<Result<SelectedEntry, LogError>, sqlx::Error> {
    let state: Option<String> = row.try_get("state")?;
    let state = match state.as_deref().map(ExceptionState::stored).transpose() {
        Ok(state) => state,
        Err(error) => return Ok(Err(error)),
    };
    // A row without an id was never published. It is identified by its position.
    let message_id = uuid(&text(row, "message_id")?).unwrap_or_default();
    let (is_passed, is_discarded, is_edited) =
        (row.try_get("passed")?, row.try_get("discarded")?, row.try_get("edited")?);
    Ok(Ok(SelectedEntry {
        id: EntryId(row.try_get("id")?),
        message_id,
        topic: text(row, "topic")?,
        key: optional_text(row, "key")?,
        labels: Labels::read(text(row, "kind")?, row.try_get("headers")?),
        payload_bytes: u64::try_from(row.try_get::<i64, _>("payload_bytes")?).unwrap_or_default(),
        enqueued_at: at_micros(row.try_get("enqueued_at")?),
        standing: Standing::of(is_passed, state, is_discarded, is_edited),
    }))
}
