//! The columns of a row of the log.

use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;
use time::OffsetDateTime;

use crate::entry::{Lengths, RowLimit};
use crate::row::{Row, RowId};
use crate::{LogError, text};

/// Borrows the columns of a message. Texts are taken as bytes: the log knows which of them must be
/// UTF-8.
pub(super) fn columns(row: &SqliteRow) -> Result<Row<'_>, LogError> {
    let read = || -> Result<Row<'_>, sqlx::Error> {
        let enqueued_at: Option<i64> = row.try_get("enqueued_at")?;
        let time = |micros: i64| OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1_000).ok();
        let length =
            |name| Ok::<_, sqlx::Error>(usize::try_from(row.try_get::<i64, _>(name)?).unwrap_or_default());
        let payload: Option<&[u8]> = row.try_get("payload")?;
        Ok(Row {
            id: row.try_get("id")?,
            message_id: RowId::Text(row.try_get("message_id")?),
            topic: row.try_get("topic")?,
            key: row.try_get("key")?,
            kind: row.try_get("kind")?,
            content_type: row.try_get("content_type")?,
            headers: row.try_get("headers")?,
            traceparent: row.try_get("traceparent")?,
            tracestate: row.try_get("tracestate")?,
            payload: payload.unwrap_or_default(),
            lengths: Lengths { payload: length("payload_bytes")?, headers: length("headers_bytes")? },
            enqueued_at: enqueued_at.and_then(time),
            deliver_in: row.try_get("deliver_in")?,
        })
    };
    read().map_err(LogError::during("read an entry"))
}

/// Returns the longest payload and the longest headers that are read, in bytes.
pub(super) fn row_max(limit: &RowLimit) -> (i64, i64) {
    let max = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
    (max(limit.payload.message_bytes_max), max(limit.headers_bytes_max()))
}

/// Reads a text that may not be UTF-8, for display to an operator.
pub(super) fn text(row: &SqliteRow, column: &str) -> Result<String, sqlx::Error> {
    row.try_get::<&[u8], _>(column).map(text::shown)
}
