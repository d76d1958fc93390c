//! The columns of a row: their SQL, and how they are read.

use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;
use time::OffsetDateTime;

use crate::entry::{Lengths, RowLimit};
use crate::row::{Row, RowId};
use crate::{LogError, text};

/// The content of a message, in the log and in the copies of parked entries.
pub(super) const CONTENT: &str = "kind, content_type, headers, traceparent, tracestate, payload, enqueued_at";

/// The same of a row of the log, with the payload ?3 and the headers ?4 of an edit, if given.
pub(super) const EDITED_CONTENT: &str =
    "kind, content_type, coalesce(?4, headers), traceparent, tracestate, coalesce(?3, payload), enqueued_at";

/// The assignments of an erasure; ?3 is the content type of erased rows.
pub(super) const ERASED: &str =
    "headers = NULL, traceparent = NULL, tracestate = NULL, payload = x'', content_type = ?3";

/// Whether the content of a row of the log is too large to be copied when it is parked (above 1
/// MiB).
pub(super) const IS_LARGE: &str =
    "(octet_length(payload) + coalesce(octet_length(headers), 0) + coalesce(octet_length(tracestate), 0)
        + coalesce(octet_length(traceparent), 0) > 1048576)";

/// The columns of a row of the log. Payload and headers are included only when they are not longer
/// than the relay accepts: this keeps rows of any size out of its memory. SQLite knows the length
/// of a column without reading it. A trace context is included if its length is valid.
pub(super) const COLUMNS: &str = "id, message_id, topic, key, kind, content_type,
    CASE WHEN coalesce(octet_length(headers), 0) <= {headers_max} THEN headers END AS headers,
    CASE WHEN octet_length(traceparent) <= 64
        AND coalesce(octet_length(tracestate), 0) <= 8192 THEN traceparent END AS traceparent,
    CASE WHEN octet_length(tracestate) <= 8192 THEN tracestate END AS tracestate,
    CASE WHEN octet_length(payload) <= {payload_max} THEN payload END AS payload,
    octet_length(payload) AS payload_bytes, coalesce(octet_length(headers), 0) AS headers_bytes, enqueued_at,
    (deliver_at - {now}) / 1e6 AS deliver_in";

/// The same of the exception `e`: from its copy `p`, or from its row `m` of the log if that was too
/// large to be copied. The lengths are those of columns: to find the length of an expression,
/// SQLite would read the value.
pub(super) const PARKED_COLUMNS: &str =
    "e.id, e.message_id, e.topic, e.key, coalesce(p.kind, m.kind) AS kind,
    coalesce(p.content_type, m.content_type, '') AS content_type,
    CASE WHEN coalesce(octet_length(p.headers), octet_length(m.headers), 0) <= {headers_max}
        THEN coalesce(p.headers, m.headers) END AS headers,
    CASE WHEN coalesce(octet_length(p.traceparent), octet_length(m.traceparent)) <= 64
        AND coalesce(octet_length(p.tracestate), octet_length(m.tracestate), 0) <= 8192
        THEN coalesce(p.traceparent, m.traceparent) END AS traceparent,
    CASE WHEN coalesce(octet_length(p.tracestate), octet_length(m.tracestate)) <= 8192
        THEN coalesce(p.tracestate, m.tracestate) END AS tracestate,
    CASE WHEN coalesce(octet_length(p.payload), octet_length(m.payload), 0) <= {payload_max}
        THEN coalesce(p.payload, m.payload, x'') END AS payload,
    coalesce(octet_length(p.payload), octet_length(m.payload), 0) AS payload_bytes,
    coalesce(octet_length(p.headers), octet_length(m.headers), 0) AS headers_bytes,
    coalesce(p.enqueued_at, m.enqueued_at) AS enqueued_at, NULL AS deliver_in";

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
