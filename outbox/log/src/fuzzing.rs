//! Readers of stored values as functions of plain values, for the fuzz targets. Not part of the
//! API.

use std::collections::HashMap;

use message::{SizeLimit, Source};
use time::OffsetDateTime;

use crate::entry::Lengths;
use crate::row::{Names, Row, RowId};
use crate::{Entry, LogError, Mark, RowLimit, stored};

/// The columns of a row as plain SQL can write them, by name. A column that is missing is null, or
/// empty if it cannot be null. `deliver_in` is a text: the seconds until the message is due.
pub type Columns = HashMap<String, Vec<u8>>;

/// Returns the entry that the relay reads from a row.
pub fn entry(columns: &Columns, source: &Source) -> Entry {
    let column = |name: &str| columns.get(name).map(Vec::as_slice);
    let not_null = |name| column(name).unwrap_or_default();
    let lengths = Lengths { payload: not_null("payload").len(), headers: not_null("headers").len() };
    Row {
        id: 1,
        message_id: RowId::Text(not_null("message_id")),
        topic: not_null("topic"),
        key: column("key"),
        kind: column("kind"),
        content_type: not_null("content_type"),
        headers: column("headers"),
        traceparent: column("traceparent"),
        tracestate: column("tracestate"),
        payload: not_null("payload"),
        lengths,
        enqueued_at: Some(OffsetDateTime::UNIX_EPOCH),
        deliver_in: column("deliver_in").and_then(|text| str::from_utf8(text).ok()?.parse().ok()),
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
