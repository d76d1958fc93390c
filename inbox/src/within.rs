//! Bounds calls to the database. A host that is down answers nothing, and its connections do not
//! notice while they have nothing to send.
//!
//! A connection that did not answer in time is dropped. The pool closes it if it does not answer
//! the pool either: `outbox::pool_options` sets a limit for that.

use std::future::Future;
use std::io;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Database, Pool};

use crate::store_error::StoreError;

/// Default time that a process waits for an answer of the database. Admitting a message waits for a
/// racing consumer of the same message, so the default is longer than a handler may take.
pub const CALL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(120);
/// Minimum time that it waits.
pub const CALL_TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// Maximum time that it waits.
pub const CALL_TIMEOUT_MAX: Duration = Duration::from_secs(3_600);

/// Maximum duration of a whole maintenance, which creates and drops tables and waits for locks.
pub(crate) const MAINTENANCE_MAX: Duration = Duration::from_secs(1_800);

/// A database pool with a time limit for every call. Idempotency keys and sagas use it.
#[doc(hidden)]
#[derive(Debug)]
pub struct Bounded<DB: Database> {
    pool: Pool<DB>,
    limit: Duration,
}

impl<DB: Database> Bounded<DB> {
    /// Wraps a pool; `limit` is the maximum duration of one call.
    #[must_use]
    pub fn new(pool: Pool<DB>, limit: Duration) -> Self {
        Self { pool, limit }
    }

    /// Returns the pool, for calls that are bounded by [`call`](Self::call) as a whole.
    #[must_use]
    pub fn pool(&self) -> &Pool<DB> {
        &self.pool
    }

    /// Returns the maximum duration of one call.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Acquires a connection.
    ///
    /// # Errors
    /// As for [`call`](Self::call).
    pub async fn acquire(&self) -> Result<PoolConnection<DB>, sqlx::Error> {
        self.call(self.pool.acquire()).await
    }

    /// Waits for a call up to the limit, then drops it. The call must own its connection, so that
    /// the connection is dropped too or returned to the pool.
    ///
    /// # Errors
    /// The errors of the call. After the limit, the error of a lost connection: the statement may
    /// or may not have taken effect.
    pub async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        self.any(call).await.unwrap_or_else(Err)
    }

    /// Does the same for a call that has errors of its own.
    ///
    /// # Errors
    /// The error of a lost connection, after the limit.
    pub async fn any<T>(&self, call: impl Future<Output = T>) -> Result<T, sqlx::Error> {
        let lost = || io::Error::new(io::ErrorKind::TimedOut, no_answer(self.limit));
        tokio::time::timeout(self.limit, call).await.map_err(|_| sqlx::Error::Io(lost()))
    }
}

/// Waits for a call up to `limit`, then drops it.
pub(crate) async fn within<T, E: From<StoreError>>(
    limit: Duration,
    what: &'static str,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer,
        Err(_) => Err(StoreError::broken(what, no_answer(limit)).into()),
    }
}

/// Returns the error text of a call that did not answer in time.
pub(crate) fn no_answer(limit: Duration) -> String {
    format!("no answer within {limit:?}: the connection is given up")
}
