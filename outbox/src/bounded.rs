//! Bounds calls to the database. A host that is down does not answer, and its connections do not
//! notice while they have nothing to send.
//!
//! A connection that did not answer in time is dropped. The pool closes it if it does not answer
//! the pool either: [`pool_options`](crate::pool_options) sets a limit for that.

use std::future::Future;
use std::io;
use std::time::Duration;

use migrations::Backend;
use sqlx::pool::PoolConnection;
use sqlx::{Database, Pool, Transaction};

use crate::begin::begin_on;

/// Minimum time that an inbox, idempotency keys or sagas wait for the database.
pub const CALL_TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// Maximum time that they wait.
pub const CALL_TIMEOUT_MAX: Duration = Duration::from_secs(3_600);

/// A database pool with a time limit for every call. Nodes, idempotency keys and sagas use it.
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

    /// Waits for a call up to the limit, then drops it. The call must own its connection, so that
    /// the connection is dropped too or returned to the pool. It begins no transaction, except by
    /// [`begin`](Self::begin): a BEGIN that is dropped leaves the session inside the transaction.
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

    /// Does the same for a call with its own error type.
    ///
    /// # Errors
    /// The error of a lost connection, after the limit.
    pub async fn any<T>(&self, call: impl Future<Output = T>) -> Result<T, sqlx::Error> {
        let lost = || io::Error::new(io::ErrorKind::TimedOut, no_answer(self.limit));
        tokio::time::timeout(self.limit, call).await.map_err(|_| sqlx::Error::Io(lost()))
    }
}

impl<DB: Backend> Bounded<DB> {
    /// Acquires a connection. On SQLite its commits wait for the disk.
    ///
    /// # Errors
    /// As for [`call`](Self::call).
    pub async fn acquire(&self) -> Result<PoolConnection<DB>, sqlx::Error> {
        // Boxed, because it would be the largest part of every future that contains it.
        let acquired = Box::pin(async {
            let mut connection = self.pool.acquire().await?;
            DB::wait_for_the_disk(&mut connection).await?;
            Ok(connection)
        });
        self.call(acquired).await
    }

    /// Begins a transaction on a connection of the pool. `begin` sends the statement. The limit
    /// applies separately to waiting for the connection and to waiting for the answer: a caller
    /// that has waited long in an exhausted pool still has time for its BEGIN. Cancel-safe, as
    /// [`begin_on`] is.
    ///
    /// # Errors
    /// As for [`call`](Self::call); no transaction is open.
    pub async fn begin<F>(
        &self,
        begin: impl FnOnce(PoolConnection<DB>) -> F,
    ) -> Result<Transaction<'static, DB>, sqlx::Error>
    where
        F: Future<Output = Result<Transaction<'static, DB>, sqlx::Error>> + Send + 'static,
    {
        let connection = self.call(Box::pin(DB::acquire_outside(&self.pool))).await?;
        self.call(begin_on(connection, begin)).await
    }
}

/// Returns the error text of a call that did not answer in time.
#[must_use]
pub fn no_answer(limit: Duration) -> String {
    format!("no answer within {limit:?}")
}
