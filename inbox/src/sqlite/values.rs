//! Encoding of ids and times in SQLite's columns.

use std::time::Duration;

use message::Fingerprint;
use migrations::query;
use time::OffsetDateTime;
use uuid::Uuid;
use uuid::fmt::Hyphenated;

/// Returns a UUID as lower-case text.
pub(super) fn text(id: Uuid) -> Hyphenated {
    id.hyphenated()
}

/// Returns a time as microseconds since 1970.
pub(super) fn micros(at: OffsetDateTime) -> i64 {
    query::micros_of(at)
}

/// Returns a duration in microseconds.
pub(super) fn span(duration: Duration) -> i64 {
    query::micros(duration)
}

/// Decodes the time of a column.
pub(super) fn time(micros: i64) -> Result<OffsetDateTime, sqlx::Error> {
    query::at_micros(micros)
}

/// Decodes the fingerprint of a column.
pub(super) fn fingerprint(bytes: &[u8]) -> Result<Fingerprint, sqlx::Error> {
    Fingerprint::try_from(bytes).map_err(|error| sqlx::Error::Decode(error.into()))
}
