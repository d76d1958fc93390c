//! The columns of a row, by index: looking up a name costs more than reading most of the columns.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::LogError;
use crate::entry::Lengths;
use crate::row::{Row, RowId};
use crate::text;

/// The indexes of the columns in `statements::BOUNDED`, and of those that follow them.
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
