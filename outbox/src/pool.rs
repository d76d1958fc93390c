//! Connection pools that are safe for transactions.

use std::time::Duration;

use sqlx::Pool;
use sqlx::pool::PoolOptions;

use crate::dialect::Dialect;
use crate::pool_error::PoolError;

/// How long a session may be idle inside a transaction before PostgreSQL ends it. A producer that
/// hangs must not hold row locks forever.
const IDLE_IN_TRANSACTION_MAX: Duration = Duration::from_secs(60);

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
/// server on another machine must prove its identity. See [`pool_with`] for URLs with several
/// hosts.
///
/// # Errors
/// [`PoolError`]. Cancel-safe.
pub async fn pool<DB: Dialect>(url: &str) -> Result<Pool<DB>, PoolError> {
    pool_with(url, |options| options).await
}

/// Opens a pool with [`pool_options`] to which `adjust` adds sizes and timeouts. A hook that it
/// sets replaces the one that keeps the pool safe.
///
/// A PostgreSQL URL may name up to 16 hosts, one of which is the primary:
/// `postgres://shop@h1:5432,h2:5433/orders`. Every connection of the pool is then made with the
/// primary. The pool has one more session, outside of its size, in which the primary is asked once
/// a second whether it still is one. When it has gone or has become a standby, all hosts are asked
/// in their order, and connections are made with the new primary. Meanwhile [`Pool::acquire`] waits
/// up to its timeout; a connection with the previous primary is closed instead of being lent again.
/// A password that [`Pool::set_connect_options`] has replaced is used for the next primary as well.
/// This goes on until [`Pool::close`]: a pool that is dropped without it keeps its connections.
///
/// # Errors
/// [`PoolError`]; of several hosts, when none is the primary within 10 s. Cancel-safe.
pub async fn pool_with<DB: Dialect>(
    url: &str,
    adjust: impl FnOnce(PoolOptions<DB>) -> PoolOptions<DB> + Send,
) -> Result<Pool<DB>, PoolError> {
    DB::open_pool(url, IDLE_IN_TRANSACTION_MAX, adjust).await
}
