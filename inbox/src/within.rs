//! Bounds calls to the database: a host that is gone answers nothing, and its connections tell
//! nothing of it for as long as they have nothing to send.
//!
//! A connection that did not answer in time is dropped. The pool closes it when it does not answer
//! the pool either: `outbox::pool_options` has a limit for that.

use std::future::Future;
use std::io;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Database, Pool};

use crate::store_error::StoreError;

/// How long a process waits for an answer of the database by default. Admitting a message waits for
/// a racing consumer of the same one, so it is longer than a handler may take.
pub const CALL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(120);
/// The shortest time for which it waits.
pub const CALL_TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// The longest.
pub const CALL_TIMEOUT_MAX: Duration = Duration::from_secs(3_600);

/// How long maintenance may take as a whole: it makes and drops tables, and waits for locks.
pub(crate) const MAINTENANCE_MAX: Duration = Duration::from_secs(1_800);

/// A database whose every call is bounded: below idempotency keys and sagas.
#[doc(hidden)]
#[derive(Debug)]
pub struct Bounded<DB: Database> {
    pool: Pool<DB>,
    limit: Duration,
}

impl<DB: Database> Bounded<DB> {
    /// `limit` is how long one call may take.
    #[must_use]
    pub fn new(pool: Pool<DB>, limit: Duration) -> Self {
        Self { pool, limit }
    }

    /// The pool, for calls that are bounded by [`call`](Self::call) as a whole.
    #[must_use]
    pub fn pool(&self) -> &Pool<DB> {
        &self.pool
    }

    /// How long one call may take.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Lends a connection.
    ///
    /// # Errors
    /// As for [`call`](Self::call).
    pub async fn acquire(&self) -> Result<PoolConnection<DB>, sqlx::Error> {
        self.call(self.pool.acquire()).await
    }

    /// Waits for a call to its limit, then drops it. The connection that it used must go with it,
    /// or be given back to the pool.
    ///
    /// # Errors
    /// Those of the call; after its limit one of a connection that is lost: what was under way may
    /// have happened.
    pub async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        self.any(call).await.unwrap_or_else(Err)
    }

    /// Waits for a call that has errors of its own.
    ///
    /// # Errors
    /// That of a connection that is lost, after its limit.
    pub async fn any<T>(&self, call: impl Future<Output = T>) -> Result<T, sqlx::Error> {
        let lost = || io::Error::new(io::ErrorKind::TimedOut, no_answer(self.limit));
        tokio::time::timeout(self.limit, call).await.map_err(|_| sqlx::Error::Io(lost()))
    }
}

/// Waits for a call at most so long, then drops it.
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

/// The text of a call that was given up.
pub(crate) fn no_answer(limit: Duration) -> String {
    format!("no answer within {limit:?}: the connection is given up")
}
