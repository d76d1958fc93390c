//! Readers of stored values as functions of plain values, for the fuzz targets. Not part of the
//! API.

use message::{SizeLimit, Source};
use time::OffsetDateTime;

use crate::entry::Lengths;
use crate::row::{Names, Row, RowId};
use crate::{Entry, LogError, Mark, RowLimit, stored};

/// The columns of a row as plain SQL can write them.
#[derive(Debug, Clone, Default)]
pub struct Columns {
    /// `message_id`.
    pub message_id: Vec<u8>,
    /// `topic`.
    pub topic: Vec<u8>,
    /// `key`.
    pub key: Option<Vec<u8>>,
    /// `kind`.
    pub kind: Option<Vec<u8>>,
    /// `content_type`.
    pub content_type: Vec<u8>,
    /// `headers`, JSON as text.
    pub headers: Option<Vec<u8>>,
    /// `traceparent`.
    pub traceparent: Option<Vec<u8>>,
    /// `tracestate`.
    pub tracestate: Option<Vec<u8>>,
    /// `payload`.
    pub payload: Vec<u8>,
    /// Seconds until the message is due.
    pub deliver_in: Option<f64>,
}

/// Returns the entry that the relay reads from a row.
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
        lengths: Lengths {
            payload: columns.payload.len(),
            headers: columns.headers.as_deref().map_or(0, <[u8]>::len),
        },
        enqueued_at: Some(OffsetDateTime::UNIX_EPOCH),
        deliver_in: columns.deliver_in,
    }
    .into_entry(&mut Names::default(), source, &RowLimit::of(SizeLimit::CHUNKED))
}

/// Parses a mark of PostgreSQL and writes it again.
pub fn postgres_mark(notation: &str) -> Result<String, LogError> {
    crate::postgres::rewritten(&Mark::new(notation)).map(|mark| mark.as_str().to_owned())
}

/// Parses a mark of SQLite and writes it again.
pub fn sqlite_mark(notation: &str) -> Result<String, LogError> {
    crate::sqlite::rewritten(&Mark::new(notation)).map(|mark| mark.as_str().to_owned())
}

/// Parses a stored cursor and writes it again.
pub fn cursor(json: &str) -> Result<String, LogError> {
    stored::write(&stored::read(json)?)
}
