//! Rows as parked entries and records.

use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use crate::EntryId;
use crate::admin::entry::{AuditRecord, ListedEntry, at_micros, due};
use crate::sqlite::row::text;

pub(super) fn listed(row: &SqliteRow) -> Result<ListedEntry, sqlx::Error> {
    Ok(ListedEntry {
        id: EntryId(row.try_get("id")?),
        message_id: row.try_get("message_id")?,
        topic: row.try_get("topic")?,
        key: row.try_get("key")?,
        kind: text(row, "kind")?,
        attempts: u32::try_from(row.try_get::<i64, _>("attempts")?).unwrap_or_default(),
        due_in: due(row.try_get("due_in")?),
        fault: row.try_get("fault")?,
        error: row.try_get("error")?,
        created_at: at_micros(row.try_get("created_at")?),
        updated_at: at_micros(row.try_get("updated_at")?),
        payload_bytes: u64::try_from(row.try_get::<i64, _>("payload_bytes")?).unwrap_or_default(),
        edited: row.try_get("edited")?,
    })
}

pub(super) fn record(row: &SqliteRow) -> Result<AuditRecord, sqlx::Error> {
    Ok(AuditRecord {
        at: at_micros(row.try_get("at")?),
        actor: row.try_get("actor")?,
        id: EntryId(row.try_get("id")?),
        message_id: row.try_get("message_id")?,
        action: row.try_get("action")?,
        note: row.try_get("note")?,
        selection: row.try_get("selection")?,
        digest_before: row.try_get("digest_before")?,
        digest_after: row.try_get("digest_after")?,
        error: row.try_get("error")?,
    })
}
