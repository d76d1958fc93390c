//! Begins a transaction on a connection of a pool. The only place that waits for the answer to a
//! BEGIN: a rule of `xtask/tests/tidy.rs` refuses others.
//!
//! A `begin` of sqlx that is dropped before its answer leaves the session inside the transaction,
//! while sqlx believes that it is outside. The pool hands the session to its next user, whose
//! writes are then confirmed but not committed. A time limit drops a call in the same way as a
//! caller that goes away. So limits are outside and the shield is inside: [`begin_on`] may be
//! dropped at any point.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::LazyLock;
use std::time::Duration;

use message::shield;
use sqlx::pool::PoolConnection;
use sqlx::{Database, Transaction};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Maximum time for which a BEGIN whose caller is gone keeps its connection, for which a pool of
/// the toolkit cleans a connection that comes back, and for which it waits for an idle one to
/// answer.
pub(crate) const RELEASE_MAX: Duration = Duration::from_secs(10);

/// Begins a transaction on a connection. `begin` sends the statement, and owns the connection.
///
/// Cancel-safe. A BEGIN whose caller is gone runs to its end in a task of its own, and is then
/// rolled back. Without an answer within 10 s, its session is closed, and the server rolls back.
///
/// # Errors
/// Those of `begin`.
pub async fn begin_on<DB, F>(
    connection: PoolConnection<DB>,
    begin: impl FnOnce(PoolConnection<DB>) -> F,
) -> Result<Transaction<'static, DB>, sqlx::Error>
where
    DB: Database,
    F: Future<Output = Result<Transaction<'static, DB>, sqlx::Error>> + Send + 'static,
{
    let (caller, gone) = oneshot::channel();
    let begun = shield(answered(Box::pin(begin(connection)), gone)).await;
    drop(caller);
    begun
}

/// Waits for the answer, but not forever once the caller is gone.
async fn answered<DB, F>(
    mut begin: Pin<Box<F>>,
    gone: oneshot::Receiver<Infallible>,
) -> Result<Transaction<'static, DB>, sqlx::Error>
where
    DB: Database,
    F: Future<Output = Result<Transaction<'static, DB>, sqlx::Error>> + Send + 'static,
{
    let unanswered = async {
        gone.await.ok();
        tokio::time::sleep(RELEASE_MAX).await;
    };
    tokio::select! {
        biased;
        begun = &mut begin => return begun,
        () = unanswered => {}
    }
    close(begin);
    Err(io::Error::from(io::ErrorKind::TimedOut).into())
}

/// Closes the connection of a call. A dropped connection goes back to its pool in a task, and sqlx
/// closes it when that task does not run. In a runtime that has ended, no task runs.
fn close(call: impl Future) {
    static ENDED: LazyLock<io::Result<Handle>> = LazyLock::new(|| {
        let runtime = Builder::new_current_thread().build()?;
        let handle = runtime.handle().clone();
        runtime.shutdown_background();
        Ok(handle)
    });
    match &*ENDED {
        Ok(ended) => {
            let _in_it = ended.enter();
            drop(call);
        }
        Err(error) => {
            // Handed to another user, it could lose that user's writes; kept, it is missing in its
            // pool.
            tracing::error!(%error, "a connection that does not answer could not be closed");
            std::mem::forget(call);
        }
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use sqlx::Sqlite;
    use sqlx::sqlite::SqlitePoolOptions;

    use super::*;

    type Begun = Result<Transaction<'static, Sqlite>, sqlx::Error>;

    /// Goal: a BEGIN without an answer and without a caller keeps its place in the pool no longer
    /// than the limit, and its session is not handed on. Oracle: the pool's count of connections.
    #[tokio::test]
    async fn an_unanswered_begin_closes_its_connection() {
        let pool = SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await.unwrap();
        let connection = pool.acquire().await.unwrap();
        tokio::time::pause();
        let silent = begin_on(connection, |connection| async move {
            let _connection = connection;
            std::future::pending::<Begun>().await
        });
        assert!(tokio::time::timeout(Duration::from_secs(1), silent).await.is_err());
        tokio::time::sleep(RELEASE_MAX / 2).await;
        assert_eq!((pool.size(), pool.num_idle()), (1, 0), "the answer may still come");
        tokio::time::sleep(RELEASE_MAX).await;
        assert_eq!((pool.size(), pool.num_idle()), (0, 0), "it is closed, not handed on");
    }

    /// Goal: a waiting caller is never abandoned. Oracle: the answer after many times the limit.
    #[tokio::test]
    async fn a_caller_that_waits_gets_a_late_answer() {
        let pool = SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await.unwrap();
        let connection = pool.acquire().await.unwrap();
        tokio::time::pause();
        let late = begin_on(connection, |connection| async move {
            tokio::time::sleep(RELEASE_MAX * 5).await;
            Transaction::begin(connection, None).await
        });
        late.await.unwrap();
    }
}
