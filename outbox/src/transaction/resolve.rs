//! Looks up the outcome of a commit whose answer was lost.

use std::error::Error;
use std::time::Duration;

use message::finite;
use sqlx::Pool;
use tokio::time::Instant;

use crate::dialect::{Dialect, TransactionStatus};
use crate::producer::Outbox;
use crate::transaction::commit::UnknownCommit;

/// The first pause between two queries; it doubles up to one second.
const PAUSE_BASE: Duration = Duration::from_millis(20);

/// The outcome of a commit. On SQLite a commit is unknown only after an I/O error. There, a
/// transaction whose messages were all rolled back to a savepoint looks as if it had not committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitOutcome {
    /// It committed: its messages exist.
    Committed,
    /// It did not commit and can no longer commit. Running it again is safe.
    NotCommitted,
    /// It has no message that identifies it: it added none, rolled all of them back to a savepoint,
    /// or committed so long ago that retention may have removed them.
    Unrecognisable,
}

/// The outcome could not be determined in time and stays unknown.
#[derive(Debug, thiserror::Error)]
#[error("the outcome of the commit could not be determined within {waited:?}: {reason}")]
pub struct ResolveError {
    /// How long the database was queried.
    pub waited: Duration,
    /// The last obstacle.
    pub reason: String,
    /// The client library's last error.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl<DB: Dialect> Outbox<DB> {
    /// Looks up the outcome of an unknown commit on another connection: waits until the transaction
    /// is no longer running, then queries its messages. Stops after
    /// [`RetryPolicy::resolve_timeout`](crate::RetryPolicy). Cancel-safe.
    ///
    /// # Errors
    /// [`ResolveError`] when the database does not answer or is a standby, or the old transaction
    /// is still running.
    pub async fn resolve(
        &self,
        pool: &Pool<DB>,
        commit: &UnknownCommit,
    ) -> Result<CommitOutcome, ResolveError> {
        if commit.message_ids.is_empty() {
            return Ok(CommitOutcome::Unrecognisable);
        }
        let limit = finite(self.settings.retry.resolve_timeout);
        let until = Instant::now() + limit;
        let mut pause = PAUSE_BASE;
        loop {
            let asked = tokio::time::timeout_at(until, self.ask(pool, commit)).await;
            let (reason, source): (_, Option<Box<dyn Error + Send + Sync>>) = match asked {
                Ok(Ok(Some(outcome))) => return Ok(outcome),
                Ok(Ok(None)) => (String::from("the transaction is still running"), None),
                Ok(Err(error)) => (error.to_string(), Some(Box::new(error))),
                Err(_) => (String::from("the database does not answer"), None),
            };
            if Instant::now() + pause >= until {
                return Err(ResolveError { waited: limit, reason, source });
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// Queries once; `None` while the transaction is running.
    async fn ask(
        &self,
        pool: &Pool<DB>,
        commit: &UnknownCommit,
    ) -> Result<Option<CommitOutcome>, sqlx::Error> {
        let mut connection = pool.acquire().await?;
        Ok(match DB::fate(&mut connection, &self.settings.statements, commit).await? {
            TransactionStatus::NotHere => {
                connection.close_on_drop();
                let reason = "this server is a standby, which does not know the latest commits";
                return Err(sqlx::Error::Protocol(reason.to_owned()));
            }
            TransactionStatus::Running => None,
            TransactionStatus::Committed => Some(CommitOutcome::Committed),
            TransactionStatus::RolledBack => Some(CommitOutcome::NotCommitted),
            TransactionStatus::Unclear => Some(CommitOutcome::Unrecognisable),
        })
    }
}
