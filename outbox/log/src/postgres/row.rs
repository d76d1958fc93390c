//! The columns of a row: their SQL, and how they are read. By index: looking up a name costs more
//! than reading most of the columns.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::LogError;
use crate::entry::Lengths;
use crate::row::{Row, RowId};
use crate::text;

/// The content of a message, in the log and in the copies of parked entries.
pub(super) const CONTENT: &str = "kind, content_type, headers, traceparent, tracestate, payload, enqueued_at";

/// The same for a copy: without its large columns, unless it `fits`.
pub(super) const CONTENT_IF_IT_FITS: &str = "kind, content_type, CASE WHEN fits THEN headers END,
    CASE WHEN fits THEN traceparent END, CASE WHEN fits THEN tracestate END,
    CASE WHEN fits THEN payload END, enqueued_at";

/// The bytes of content that a copy of the row `m` takes.
pub(super) const COPIED_BYTES: &str =
    "octet_length(m.payload)::bigint + coalesce(pg_column_size(m.headers), 0)
    + coalesce(octet_length(m.traceparent), 0) + coalesce(octet_length(m.tracestate), 0)";

/// The assignments of content that no edit replaces, from `c`.
pub(super) const UNEDITED: &str = "traceparent = c.traceparent, tracestate = c.tracestate";

/// The same content, from the copy `p`, or from the row `m` if that was too large to be copied.
pub(super) const UNEDITED_OF: &str =
    "CASE WHEN p.payload IS NULL THEN m.traceparent ELSE p.traceparent END AS traceparent,
    CASE WHEN p.payload IS NULL THEN m.tracestate ELSE p.tracestate END AS tracestate";

/// The assignments of an erasure; $3 is the content type of erased rows.
pub(super) const ERASED: &str =
    "headers = NULL, traceparent = NULL, tracestate = NULL, payload = '', content_type = $3";

/// The columns of a message, for [`BOUNDED`].
pub(super) const COLUMNS: &str = "m.id, m.message_id, m.topic, m.key, m.kind, m.content_type,
    {headers} AS headers, {unbounded} AS unbounded, {trace}, m.payload, m.enqueued_at,
    extract(epoch FROM m.deliver_at - clock_timestamp())::float8 AS deliver_in";

/// The columns of rows `run` in the order in which `row::read` takes them, then the lengths.
/// Payload and headers are included only when `is_short` holds: this keeps rows of any size out of
/// the relay's memory. The length of a payload is known without fetching it from its TOAST table.
pub(super) const BOUNDED: &str = "run.id, run.message_id, run.topic, run.key, run.kind, run.content_type,
    CASE WHEN {is_short} THEN run.headers END AS headers, run.traceparent, run.tracestate,
    CASE WHEN {is_short} THEN run.payload END AS payload, run.enqueued_at, run.deliver_in,
    octet_length(run.payload) AS payload_bytes, {headers_bytes} AS headers_bytes";

/// The headers of `of` as text, unless [`UNBOUNDED`]. A subquery with LIMIT or OFFSET around it
/// keeps the server from producing the text more than once.
pub(super) const HEADERS: &str = "CASE WHEN NOT {unbounded} THEN {of}.headers::text END";

/// Whether headers as text may be longer than the server can write (1 GiB): an escape makes six
/// bytes of one. Stored headers are compressed by less than 256 to 1, and their stored size is
/// known without reading them.
pub(super) const UNBOUNDED: &str = "(coalesce(pg_column_size({of}.headers), 0) > 262144
    AND pg_column_size({of}.headers || '{}'::jsonb) > 134217728)";

/// The bytes of headers as text and of the trace state; more than `HEADERS_BYTES_MAX` where the
/// text is not produced.
pub(super) const HEADERS_BYTES: &str = "(CASE WHEN run.unbounded THEN 1073741824 ELSE
    coalesce(octet_length(run.headers), 0) + coalesce(octet_length(run.tracestate), 0) END)";

/// The trace context of `of`, if its length is valid: an invalid one is left out.
pub(super) const TRACE: &str = "CASE WHEN octet_length({of}.traceparent) <= 64
        AND coalesce(octet_length({of}.tracestate), 0) <= 8192 THEN {of}.traceparent END AS traceparent,
    CASE WHEN octet_length({of}.tracestate) <= 8192 THEN {of}.tracestate END AS tracestate";

/// The indexes of the columns in [`BOUNDED`], and of those that follow them.
pub(super) struct Column;

impl Column {
    pub(super) const ID: usize = 0;
    pub(super) const MESSAGE_ID: usize = 1;
    const TOPIC: usize = 2;
    const KEY: usize = 3;
    const KIND: usize = 4;
    const CONTENT_TYPE: usize = 5;
    const HEADERS: usize = 6;
    const TRACEPARENT: usize = 7;
    const TRACESTATE: usize = 8;
    pub(super) const PAYLOAD: usize = 9;
    const ENQUEUED_AT: usize = 10;
    const DELIVER_IN: usize = 11;
    const PAYLOAD_BYTES: usize = 12;
    const HEADERS_BYTES: usize = 13;
    /// Only for an exception.
    pub(super) const STATE: usize = 14;
    pub(super) const ATTEMPTS: usize = 15;
    /// Only for an exception: its due time, or the number of the request that it answers.
    pub(super) const PLACE: usize = 16;
}

/// Content that was not read with its row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Content<'r> {
    pub(super) payload: &'r [u8],
    pub(super) headers: Option<&'r [u8]>,
}

/// Reads the lengths, which follow the columns of a message.
pub(super) fn lengths(row: &PgRow) -> Result<Lengths, sqlx::Error> {
    let length =
        |place| Ok::<_, sqlx::Error>(usize::try_from(row.try_get::<i32, _>(place)?).unwrap_or_default());
    Ok(Lengths { payload: length(Column::PAYLOAD_BYTES)?, headers: length(Column::HEADERS_BYTES)? })
}

/// Borrows a row's columns. `content` replaces content that was not read with its row. Texts are
/// taken as bytes: the log knows which of them must be UTF-8.
pub(super) fn read<'r>(row: &'r PgRow, content: Option<Content<'r>>) -> Result<Row<'r>, LogError> {
    let bytes = |place| row.try_get_unchecked::<Option<&[u8]>, _>(place);
    let read = || -> Result<Row<'r>, sqlx::Error> {
        let lengths = lengths(row)?;
        let payload = row.try_get::<Option<&[u8]>, _>(Column::PAYLOAD)?;
        let content = match payload {
            Some(payload) => Some(Content { payload, headers: bytes(Column::HEADERS)? }),
            None => content,
        };
        Ok(Row {
            id: row.try_get(Column::ID)?,
            message_id: RowId::Uuid(row.try_get(Column::MESSAGE_ID)?),
            topic: row.try_get_unchecked(Column::TOPIC)?,
            key: bytes(Column::KEY)?,
            kind: bytes(Column::KIND)?,
            content_type: row.try_get_unchecked(Column::CONTENT_TYPE)?,
            headers: content.and_then(|content| content.headers),
            traceparent: bytes(Column::TRACEPARENT)?,
            tracestate: bytes(Column::TRACESTATE)?,
            payload: content.map_or(&[], |content| content.payload),
            lengths,
            // A row without its content counts as gone.
            enqueued_at: match content {
                Some(_) => row.try_get(Column::ENQUEUED_AT)?,
                None => None,
            },
            deliver_in: row.try_get(Column::DELIVER_IN)?,
        })
    };
    read().map_err(LogError::during("read an entry"))
}

/// Reads a text that may not be UTF-8, for display to an operator.
pub(super) fn text(row: &PgRow, column: &str) -> Result<String, sqlx::Error> {
    row.try_get_unchecked::<&[u8], _>(column).map(text::shown)
}
