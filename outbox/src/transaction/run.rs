//! Runs a transaction to completion.

use std::error::Error;

use message::{TraceContext, shield};
use migrations::SqlErrorKind;
use sqlx::Pool;
use tracing::Instrument;

use crate::dialect::Dialect;
use crate::enqueue_error::EnqueueError;
use crate::producer::Outbox;
use crate::transaction::commit::{CommitError, UnknownCommit};
use crate::transaction::ids::ReplayedIds;
use crate::transaction::resolve::CommitOutcome;
use crate::transaction::rollback::Rollback;
use crate::transaction::running::{Accepts, Running};
use crate::transaction::work::Work;
use crate::transaction::wrapper::{OutboxTransaction, begin_marked};

/// Why a transaction did not succeed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError<E: Error + 'static> {
    /// The work failed. Everything is rolled back.
    #[error("the work failed; the transaction was rolled back")]
    Work(#[source] E),
    /// No transaction could be begun. Nothing was done.
    #[error("the transaction could not be begun")]
    Begin(#[source] EnqueueError),
    /// The transaction was not committed. Everything is rolled back.
    #[error("the transaction was not committed")]
    Commit(#[source] CommitError),
    /// The outcome of the commit is unknown, neither success nor failure. Check the business rows,
    /// or [resolve](Outbox::resolve) it later.
    #[error("it is unknown whether the transaction was committed: {reason}")]
    Unknown {
        /// Why the outcome could not be determined.
        reason: String,
        /// The commit to look up.
        commit: UnknownCommit,
    },
}

/// The outcome of one attempt.
enum Attempt<T, E: Error + 'static> {
    Done(T),
    Failed(TransactionError<E>),
    Again(TransactionError<E>),
}

impl<DB: Dialect> Outbox<DB> {
    /// Runs `work` in a transaction and commits it.
    ///
    /// - It runs to its end even if the caller is dropped, in this case in a separate task. A
    ///   caller that neither polls nor drops it keeps its locks.
    /// - A serialization failure, a deadlock or a busy database makes it run again, after a pause
    ///   and with the *same* message ids; [`RetryPolicy`](crate::RetryPolicy) bounds this. The
    ///   conflict is recognised by a [`sqlx::Error`] or [`EnqueueError`] among the sources of the
    ///   work's error (a `transparent` variant of thiserror hides its own).
    /// - A commit whose answer was lost is looked up by its message ids. If it did not happen, the
    ///   work runs again.
    /// - `work` may run several times, so it must not contain effects outside the database.
    ///
    /// ```no_run
    /// # async fn example(pool: sqlx::PgPool, outbox: outbox::Outbox<sqlx::Postgres>) -> Result<(), Box<dyn std::error::Error>> {
    /// use outbox::{NewMessage, OutboxTransaction};
    /// outbox
    ///     .transaction(&pool, async |tx: &mut OutboxTransaction<sqlx::Postgres>| {
    ///         sqlx::query("UPDATE orders SET state = 'placed' WHERE id = 7").execute(tx.connection()).await?;
    ///         tx.stage(NewMessage::new("orders").key("order-7"))?;
    ///         Ok(())
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// The work may return any error. If its error type is left open, as above, it is [`Rollback`],
    /// into which `?` converts the errors of the database and of `enqueue`.
    ///
    /// Each attempt gets its own clone of the values that the closure has captured by move, so what
    /// it changes in them is lost: a `HashSet` that collects over attempts stays empty. Share
    /// state through a handle, and count in the database what must be right:
    ///
    /// ```no_run
    /// # use std::sync::{Arc, atomic::{AtomicU32, Ordering}};
    /// # async fn example(pool: sqlx::PgPool, outbox: outbox::Outbox<sqlx::Postgres>) -> Result<(), Box<dyn std::error::Error>> {
    /// let attempts = Arc::new(AtomicU32::new(0));
    /// let shared = Arc::clone(&attempts);
    /// let work = async move |tx: &mut outbox::OutboxTransaction<sqlx::Postgres>| {
    ///     shared.fetch_add(1, Ordering::Relaxed);
    ///     tx.enqueue(outbox::NewMessage::new("orders")).await?;
    ///     Ok(())
    /// };
    /// outbox.transaction(&pool, work).await?;
    /// println!("{} attempts", attempts.load(Ordering::Relaxed));
    /// # Ok(()) }
    /// ```
    ///
    /// The type of the closure's argument must be written out. A closure that keeps the transaction
    /// does not compile:
    /// ```compile_fail
    /// # async fn example(pool: sqlx::PgPool, outbox: outbox::Outbox<sqlx::Postgres>) {
    /// let mut kept = None;
    /// outbox
    ///     .transaction(&pool, async |tx: &mut outbox::OutboxTransaction<sqlx::Postgres>| {
    ///         kept = Some(tx);
    ///         Ok::<_, outbox::EnqueueError>(())
    ///     })
    ///     .await;
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`TransactionError`]. Cancel-safe: dropping the call neither stops nor harms the
    /// transaction.
    ///
    /// # Panics
    /// Passes on a panic of `work`.
    pub fn transaction<T, E, F>(
        &self,
        pool: &Pool<DB>,
        work: F,
    ) -> Running<T, E, impl Accepts<Rollback> + use<DB, T, E, F>>
    where
        T: Send + 'static,
        E: Error + Send + Sync + 'static,
        F: for<'t> Work<'t, DB, T, E> + Clone + Send + 'static,
    {
        let (outbox, pool) = (self.clone(), pool.clone());
        Running::new((), async move {
            let runner = Runner { inherited: outbox.capture(), outbox, pool };
            shield(async move { runner.run(work).await }.in_current_span()).await
        })
    }
}

struct Runner<DB: Dialect> {
    outbox: Outbox<DB>,
    pool: Pool<DB>,
    inherited: Option<TraceContext>,
}

impl<DB: Dialect> Runner<DB> {
    async fn run<T, E, F>(&self, work: F) -> Result<T, TransactionError<E>>
    where
        E: Error + Send + Sync + 'static,
        F: for<'t> Work<'t, DB, T, E> + Clone + Send,
        T: Send,
    {
        let policy = self.outbox.settings.retry;
        let mut ids = ReplayedIds::default();
        let mut attempt = 1;
        loop {
            match self.attempt(work.clone(), &mut ids).await {
                Attempt::Done(value) => return Ok(value),
                Attempt::Failed(error) => return Err(error),
                Attempt::Again(error) if attempt >= policy.attempts_max => return Err(error),
                Attempt::Again(error) => {
                    let delay = policy.backoff.delay(attempt, rand::random());
                    tracing::debug!(attempt, ?delay, %error, "running the transaction again");
                    tokio::time::sleep(delay).await;
                    attempt += 1;
                }
            }
        }
    }

    async fn attempt<T, E, F>(&self, work: F, ids: &mut ReplayedIds) -> Attempt<T, E>
    where
        E: Error + Send + Sync + 'static,
        F: for<'t> Work<'t, DB, T, E> + Clone + Send,
    {
        let tx = match begin_marked(&self.pool).await.map_err(EnqueueError::from) {
            Ok(tx) => tx,
            Err(error) if error.is_retryable() => return Attempt::Again(TransactionError::Begin(error)),
            Err(error) => return Attempt::Failed(TransactionError::Begin(error)),
        };
        let mut tx = OutboxTransaction::new(
            tx,
            Some(self.outbox.clone()),
            std::mem::take(ids),
            self.inherited.clone(),
        )
        .marked();
        let done = work.run(&mut tx).await;
        *ids = tx.take_ids();
        match done {
            Ok(value) => match tx.commit().await {
                Ok(()) => Attempt::Done(value),
                Err(error) => self.decide(value, error).await,
            },
            Err(error) => {
                if let Err(rollback) = tx.rollback().await {
                    tracing::debug!(error = %rollback, "the database has rolled back by itself");
                }
                if is_conflict(&error) {
                    Attempt::Again(TransactionError::Work(error))
                } else {
                    Attempt::Failed(TransactionError::Work(error))
                }
            }
        }
    }

    /// Decides what to do after a failed commit. An unknown one is looked up.
    async fn decide<T, E: Error + 'static>(&self, value: T, error: CommitError) -> Attempt<T, E> {
        let CommitError::Unknown { commit, source } = error else {
            return if error.is_retryable() {
                Attempt::Again(TransactionError::Commit(error))
            } else {
                Attempt::Failed(TransactionError::Commit(error))
            };
        };
        tracing::warn!(error = %source, "the answer to a commit was lost; looking up its messages");
        match self.outbox.resolve(&self.pool, &commit).await {
            Ok(CommitOutcome::Committed) => {
                self.outbox.settings.wake.wake();
                Attempt::Done(value)
            }
            Ok(CommitOutcome::NotCommitted) => not_committed(source),
            Ok(CommitOutcome::Unrecognisable) => Attempt::Failed(TransactionError::Unknown {
                reason: format!("it contains no message that would identify it ({source})"),
                commit,
            }),
            Err(error) => Attempt::Failed(TransactionError::Unknown { reason: error.to_string(), commit }),
        }
    }
}

/// Decides what to do after a commit error that proved nothing by itself, once it is known that the
/// commit did not happen. A refusal, such as one by a deferred trigger with its own code, would
/// only be repeated.
fn not_committed<T, E: Error + 'static>(source: Box<dyn Error + Send + Sync>) -> Attempt<T, E> {
    match source.downcast_ref::<sqlx::Error>() {
        Some(error @ sqlx::Error::Database(_)) if SqlErrorKind::of(error) == SqlErrorKind::Refused => {
            Attempt::Failed(TransactionError::Commit(CommitError::Refused { source, retryable: false }))
        }
        _ => Attempt::Again(TransactionError::Commit(CommitError::Lost(source))),
    }
}

/// Returns whether an error or one of its sources reports a conflict with another transaction.
fn is_conflict(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<sqlx::Error>() {
            return SqlErrorKind::of(error) == SqlErrorKind::Conflict;
        }
        if let Some(error) = error.downcast_ref::<EnqueueError>() {
            return error.is_retryable();
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::MessageId;

    #[derive(Debug, thiserror::Error)]
    #[error("business")]
    struct Business(#[source] EnqueueError);

    #[test]
    fn a_conflict_is_found_among_the_sources() {
        let concurrent = EnqueueError::Concurrent { id: MessageId::new() };
        assert!(is_conflict(&Business(concurrent)));
        for retryable in [false, true] {
            let (first, remedy) = (String::new(), crate::Remedy::RunAgain);
            let swallowed = EnqueueError::Poisoned { first, remedy, retryable };
            assert_eq!(is_conflict(&Business(swallowed)), retryable);
        }
        assert!(!is_conflict(&sqlx::Error::RowNotFound));
        assert!(is_conflict(&Rollback::from(EnqueueError::Concurrent { id: MessageId::new() })));
        assert!(!is_conflict(&Rollback::because("over the limit")));
    }
}
