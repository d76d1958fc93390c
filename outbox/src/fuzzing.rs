//! Readers of stored values, as functions of plain values, for the fuzz targets. No part of the
//! API.

use message::Source;
use time::OffsetDateTime;

use crate::log::row::{Names, Row, RowId};
use crate::log::{Entry, LogError, Mark, stored};

/// The columns of a row as plain SQL can write them.
#[derive(Debug, Clone, Default)]
pub struct Columns {
    /// `message_id`.
    pub message_id: String,
    /// `topic`.
    pub topic: String,
    /// `key`.
    pub key: Option<String>,
    /// `kind`.
    pub kind: Option<String>,
    /// `content_type`.
    pub content_type: String,
    /// `headers`, JSON as text.
    pub headers: Option<String>,
    /// `traceparent`.
    pub traceparent: Option<String>,
    /// `tracestate`.
    pub tracestate: Option<String>,
    /// `payload`.
    pub payload: Vec<u8>,
    /// Seconds until it is due.
    pub deliver_in: Option<f64>,
}

/// The entry that the relay makes of a row.
pub fn entry(columns: Columns, source: &Source) -> Entry {
    Row {
        id: 1,
        message_id: RowId::Text(&columns.message_id),
        topic: &columns.topic,
        key: columns.key.as_deref(),
        kind: columns.kind.as_deref(),
        content_type: &columns.content_type,
        headers: columns.headers.as_deref(),
        traceparent: columns.traceparent.as_deref(),
        tracestate: columns.tracestate.as_deref(),
        payload: &columns.payload,
        enqueued_at: Some(OffsetDateTime::UNIX_EPOCH),
        deliver_in: columns.deliver_in,
    }
    .into_entry(&mut Names::default(), source)
}

/// A mark of PostgreSQL read and written again.
pub fn postgres_mark(notation: &str) -> Result<String, LogError> {
    crate::postgres::rewritten(&Mark::new(notation)).map(|mark| mark.as_str().to_owned())
}

/// A mark of SQLite read and written again.
pub fn sqlite_mark(notation: &str) -> Result<String, LogError> {
    crate::sqlite::rewritten(&Mark::new(notation)).map(|mark| mark.as_str().to_owned())
}

/// A stored cursor read and written again.
pub fn cursor(json: &str) -> Result<String, LogError> {
    stored::write(&stored::read(json)?)
}
