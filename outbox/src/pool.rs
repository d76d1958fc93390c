//! Connection pools that are safe for transactions.

use std::error::Error;
use std::time::Duration;

use sqlx::Pool;
use sqlx::pool::PoolOptions;

use crate::connect::InvalidUrl;
use crate::dialect::Dialect;

/// How long a session may be idle inside a transaction before PostgreSQL ends it. A producer that
/// hangs must not hold row locks forever.
const IDLE_IN_TRANSACTION_MAX: Duration = Duration::from_secs(60);

/// Why a pool could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The URL cannot be used.
    #[error(transparent)]
    Url(#[from] InvalidUrl),
    /// The first connection failed.
    #[error("the database is not available")]
    Connect(#[source] Box<dyn Error + Send + Sync>),
}

/// Returns pool options that keep an open transaction from reaching the next user of a connection.
/// A transaction that a cancelled call left open is rolled back on return to the pool, and
/// PostgreSQL ends one that is idle for 60 s. Add sizes and timeouts as you need.
#[must_use]
pub fn pool_options<DB: Dialect>() -> PoolOptions<DB> {
    DB::pool_options(IDLE_IN_TRANSACTION_MAX)
}

/// Like [`pool_options`], for a program that does only the toolkit's work: isolation level and the
/// right to write do not depend on the defaults of role and database.
#[doc(hidden)]
#[must_use]
pub fn own_pool_options<DB: Dialect>() -> PoolOptions<DB> {
    DB::own_pool_options(IDLE_IN_TRANSACTION_MAX)
}

/// Opens a pool with [`pool_options`]. Honours `sslmode` in the URL. Without it, a PostgreSQL
/// server on another machine must prove its identity.
///
/// # Errors
/// [`PoolError`]. Cancel-safe.
pub async fn pool<DB: Dialect>(url: &str) -> Result<Pool<DB>, PoolError> {
    let options = DB::options(url, false)?;
    DB::open_pool(options, IDLE_IN_TRANSACTION_MAX).await.map_err(|error| PoolError::Connect(Box::new(error)))
}
