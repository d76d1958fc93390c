//! Rows as entries.

use sqlx::Row as _;
use sqlx::postgres::PgRow;
use time::OffsetDateTime;

use crate::entries::{
    FoundEntry, HeldBehind, Labels, ParkedState, SelectedEntry, SelectedPage, Standing, StoredPayload,
};
use crate::postgres::row::{optional_text, text};
use crate::{EntryId, ExceptionState, LogError};

/// Reads a found entry. The outer error is the client library's; the inner one concerns the
/// content.
pub(super) fn found(row: &PgRow) -> Result<Result<FoundEntry, LogError>, sqlx::Error> {
    let bytes: Option<i64> = row.try_get("payload_bytes")?;
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
                attempts: u32::try_from(row.try_get::<i32, _>("attempts")?).unwrap_or_default(),
                due_at: row.try_get("due_at")?,
                fault: row.try_get("fault")?,
                error: row.try_get("error")?,
                since: row.try_get("created_at")?,
                changed_at: row.try_get("updated_at")?,
                is_edited: row.try_get("edited")?,
                behind,
            })
        }
    };
    Ok(Ok(FoundEntry {
        id: EntryId(row.try_get("id")?),
        message_id: row.try_get("message_id")?,
        topic: text(row, "topic")?,
        key: optional_text(row, "key")?,
        labels: Labels::read(text(row, "kind")?, row.try_get_unchecked("headers")?),
        content_type: optional_text(row, "content_type")?,
        traceparent: optional_text(row, "traceparent")?,
        payload_bytes: bytes.and_then(|bytes| u64::try_from(bytes).ok()),
        enqueued_at: row.try_get("enqueued_at")?,
        transaction: row.try_get("transaction")?,
        deliver_at: row.try_get("deliver_at")?,
        is_in_log: row.try_get("is_in_log")?,
        is_passed: row.try_get("passed")?,
        is_discarded: row.try_get("was_discarded")?,
        discarded_error: row.try_get("discarded_error")?,
        is_edited: row.try_get("was_edited")?,
        parked,
    }))
}

pub(super) fn stored_payload(row: &PgRow) -> Result<StoredPayload, sqlx::Error> {
    Ok(StoredPayload {
        content_type: text(row, 0)?,
        bytes: u64::try_from(row.try_get::<i64, _>(1)?).unwrap_or_default(),
        payload: row.try_get(2)?,
    })
}

/// Returns the entries of a call. `found` is the number before some were cut off.
pub(super) fn page<E: FnOnce(sqlx::Error) -> LogError>(
    rows: &[PgRow],
    range: (i64, i64, bool),
    failed: impl Fn() -> E,
) -> Result<SelectedPage, LogError> {
    let found: i64 = match rows.first() {
        Some(row) => row.try_get("found").map_err(failed())?,
        None => 0,
    };
    let entries: Result<Vec<_>, LogError> = rows.iter().map(|row| selected(row).map_err(failed())?).collect();
    let is_cut = found > rows.len() as i64;
    Ok(SelectedPage::of(entries?, range, is_cut))
}

fn selected(row: &PgRow) -> Result<Result<SelectedEntry, LogError>, sqlx::Error> {
    let state: Option<String> = row.try_get("state")?;
    let state = match state.as_deref().map(ExceptionState::stored).transpose() {
        Ok(state) => state,
        Err(error) => return Ok(Err(error)),
    };
    let (is_passed, is_discarded, is_edited) =
        (row.try_get("passed")?, row.try_get("discarded")?, row.try_get("edited")?);
    let enqueued_at: OffsetDateTime = row.try_get("enqueued_at")?;
    Ok(Ok(SelectedEntry {
        id: EntryId(row.try_get("id")?),
        message_id: row.try_get("message_id")?,
        topic: text(row, "topic")?,
        key: optional_text(row, "key")?,
        labels: Labels::read(text(row, "kind")?, row.try_get_unchecked("headers")?),
        payload_bytes: u64::try_from(row.try_get::<i64, _>("payload_bytes")?).unwrap_or_default(),
        enqueued_at,
        standing: Standing::of(is_passed, state, is_discarded, is_edited),
    }))
}
