//! Turns the options of a service's pool into those of the log.

use outbox::connect::BUSY_TIMEOUT;
use sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};

use crate::LogError;

/// Makes the refusal of a database that lives in the memory of one process.
pub(crate) fn in_memory() -> LogError {
    LogError::operator(
        "a database in memory cannot be shared by producers and relay; use a file, sqlite:orders.db",
    )
}

/// Returns a pool's options as the relay needs them: a commit is on disk when it returns, and
/// connections wait for the write lock. The journal mode stays the pool's.
pub(crate) fn of_pool(options: SqliteConnectOptions) -> SqliteConnectOptions {
    options.synchronous(SqliteSynchronous::Full).busy_timeout(BUSY_TIMEOUT)
}
