//! Times in SQLite: microseconds since 1970. The log stores and compares them in the same way.

use time::OffsetDateTime;

/// The current time in microseconds. The clock is the machine's: a SQLite file has no server.
pub const NOW: &str = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)";

/// The largest message id with the current time.
pub const ID_OF_NOW: &str = "printf('%08x-%04x-7fff-bfff-ffffffffffff',
    CAST(unixepoch('subsec') * 1000 AS INTEGER) >> 16, CAST(unixepoch('subsec') * 1000 AS INTEGER) & 65535)";

/// Converts a time into microseconds since 1970. The databases have no time that does not fit.
#[must_use]
pub fn micros(at: OffsetDateTime) -> i64 {
    i64::try_from(at.unix_timestamp_nanos() / 1_000).unwrap_or(i64::MAX)
}
