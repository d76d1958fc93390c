//! The differences between the databases that the shared code has to know.

use migrations::Backend;
use migrations::query::Row;
use time::OffsetDateTime;

#[cfg(feature = "sqlite")]
use crate::admin::entry::at_micros;

/// A database with a log: PostgreSQL or SQLite.
pub(crate) trait Dialect: Backend {
    /// Begins a transaction that writes. On SQLite it takes the write lock at once, within the busy
    /// timeout: a lock that is raised later fails without waiting.
    const BEGIN_CHANGE: &'static str;

    /// Reads a time that may be null. A time beyond the year 9999, which only a write by hand can
    /// leave in SQLite, is read as 1970, so that it prevents neither a relay from reading its
    /// pauses nor an operator from reading a list.
    fn time(row: &Row<Self>, column: &str) -> Result<Option<OffsetDateTime>, sqlx::Error>;
}

#[cfg(feature = "postgres")]
impl Dialect for sqlx::Postgres {
    const BEGIN_CHANGE: &'static str = "BEGIN";

    fn time(row: &Row<Self>, column: &str) -> Result<Option<OffsetDateTime>, sqlx::Error> {
        row.get(column)
    }
}

#[cfg(feature = "sqlite")]
impl Dialect for sqlx::Sqlite {
    const BEGIN_CHANGE: &'static str = "BEGIN IMMEDIATE";

    fn time(row: &Row<Self>, column: &str) -> Result<Option<OffsetDateTime>, sqlx::Error> {
        let micros: Option<i64> = row.get(column)?;
        Ok(micros.map(at_micros))
    }
}
