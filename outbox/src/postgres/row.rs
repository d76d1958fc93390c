//! The columns of a row, by their places: looking a name up costs more than reading most of the
//! columns.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::log::LogError;
use crate::log::row::{Row, RowId};

/// Where the columns stand in `statements::columns!`, and what follows them.
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
    /// Of a page: the length of the payload.
    pub(super) const BYTES: usize = 12;
    /// Of an exception.
    pub(super) const STATE: usize = 12;
    pub(super) const ATTEMPTS: usize = 13;
    /// Of an exception: when it is due, or which ask it answers.
    pub(super) const PLACE: usize = 14;
}

/// Borrows a row's columns. `payload` stands in for one that has not come with its row.
pub(super) fn read<'r>(row: &'r PgRow, payload: Option<&'r [u8]>) -> Result<Row<'r>, LogError> {
    let read = || -> Result<Row<'r>, sqlx::Error> {
        let enqueued_at = row.try_get(Column::ENQUEUED_AT)?;
        let payload = row.try_get::<Option<&[u8]>, _>(Column::PAYLOAD)?.or(payload);
        Ok(Row {
            id: row.try_get(Column::ID)?,
            message_id: RowId::Uuid(row.try_get(Column::MESSAGE_ID)?),
            topic: row.try_get(Column::TOPIC)?,
            key: row.try_get(Column::KEY)?,
            kind: row.try_get(Column::KIND)?,
            content_type: row.try_get(Column::CONTENT_TYPE)?,
            headers: row.try_get(Column::HEADERS)?,
            traceparent: row.try_get(Column::TRACEPARENT)?,
            tracestate: row.try_get(Column::TRACESTATE)?,
            payload: payload.unwrap_or_default(),
            // A row whose payload is gone is gone.
            enqueued_at: payload.and(enqueued_at),
            deliver_in: row.try_get(Column::DELIVER_IN)?,
        })
    };
    read().map_err(LogError::during("read an entry"))
}
