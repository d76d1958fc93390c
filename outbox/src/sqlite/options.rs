//! From a URL, or from a pool, to connection options.

use std::str::FromStr;
use std::time::Duration;

use migrations::Dialect;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

use crate::connect::{InvalidUrl, dialect_of};
use crate::log::LogError;

/// How long a connection waits for the write lock.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// SQLite options from a URL: write-ahead log (readers and the writer do not block each other), a
/// commit is on disk when it returns, and a wait of ten seconds for the write lock. The file must
/// exist or `mode=rwc` be in the URL.
///
/// # Errors
/// [`InvalidUrl`].
pub fn sqlite_options(url: &str) -> Result<SqliteConnectOptions, InvalidUrl> {
    if dialect_of(url)? != Dialect::Sqlite {
        return Err(InvalidUrl::Scheme { scheme: String::from("postgres") });
    }
    let options = SqliteConnectOptions::from_str(url)
        .map_err(|error| InvalidUrl::Malformed { dialect: Dialect::Sqlite, problem: error.to_string() })?;
    Ok(options
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT))
}

/// The refusal of a database that lives in one process' memory.
pub(crate) fn in_memory() -> LogError {
    LogError::operator(
        "a database in memory cannot be shared by producers and relay; use a file, sqlite:orders.db",
    )
}

/// Returns options of somebody's pool as the relay needs them: a commit is on disk when it returns,
/// and the write lock is waited for. The journal mode stays the pool's.
pub(crate) fn of_pool(options: SqliteConnectOptions) -> SqliteConnectOptions {
    options.synchronous(SqliteSynchronous::Full).busy_timeout(BUSY_TIMEOUT)
}
