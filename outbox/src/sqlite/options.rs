//! Turns a URL into connection options.

use std::str::FromStr;
use std::time::{Duration, Instant};

use migrations::Dialect;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

use crate::connect::{InvalidUrl, dialect_of};

/// Maximum wait of a connection for the write lock.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause between two attempts to open a busy file.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Returns SQLite options from a URL: a write-ahead log (readers and the writer do not block each
/// other), a commit that is on disk when it returns, and a wait of ten seconds for the write lock.
/// The file must exist, or the URL must contain `mode=rwc`.
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

/// Opens a connection or a pool, and tries again for ten seconds while the file is busy. The first
/// connections of a new file all switch it to the write-ahead log. SQLite refuses some of them
/// without asking the busy handler, because waiting could end in a deadlock
/// (<https://sqlite.org/c3ref/busy_handler.html>). After ten seconds the last error is returned.
///
/// # Errors
/// The errors of `open`. Cancel-safe if `open` is.
pub async fn opened_when_free<T, F>(open: impl Fn() -> F) -> sqlx::Result<T>
where
    F: Future<Output = sqlx::Result<T>>,
{
    let begun = Instant::now();
    loop {
        match open().await {
            Err(error) if is_busy(&error) && begun.elapsed() < BUSY_TIMEOUT => {
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

/// Returns whether the error is `SQLITE_BUSY`, alone or with an extension in the upper bits
/// (<https://sqlite.org/rescode.html>).
fn is_busy(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.and_then(|code| code.parse::<u32>().ok()).is_some_and(|code| code & 0xff == 5)
}
