//! A key held by a transaction.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use message::crash_points::reached;
use message::{Backoff, shield};
use migrations::own_transaction::roll_back;
use outbox::{CommitError, OutboxTransaction, Sealed, StoreError, UnknownCommit};
use sqlx::Transaction;
use tokio::time::Instant;

use crate::handle::IdempotencyKeys;
use crate::hold::begin_holding;
use crate::id::KeyId;
use crate::record::{Ending, Found, Record, State};
use crate::store::{Ask, End, KeyStore};
use crate::{crash_points, telemetry};

/// Maximum time spent on finding out the outcome of a commit whose answer was lost.
const RESOLVE_MAX: Duration = Duration::from_secs(30);
const RESOLVE_PAUSE: Backoff = Backoff { first: Duration::from_millis(20), max: Duration::from_secs(1) };

/// A transaction that holds a key. It derefs to the [`OutboxTransaction`]: everything written
/// through it, business rows and messages, commits together with the key and its outcome. Messages
/// need an [outbox](IdempotencyKeys::with_outbox). After an enqueue that failed it refuses to
/// commit, even if the error was swallowed. When dropped without [`commit`](Self::commit), it rolls
/// back, and the key is free. Await every `begin()` (a savepoint) in it. A `begin()` that is
/// refused, or dropped before its answer, ends the whole transaction.
#[derive(Debug)]
#[must_use = "dropping it rolls it back"]
pub struct KeyTransaction<DB: KeyStore> {
    keys: IdempotencyKeys<DB>,
    tx: OutboxTransaction<DB>,
    ask: Ask,
    attempt: u32,
}

impl<DB: KeyStore> KeyTransaction<DB> {
    pub(crate) fn new(
        keys: IdempotencyKeys<DB>,
        tx: Transaction<'static, DB>,
        ask: Ask,
        attempt: u32,
    ) -> Self {
        let tx = OutboxTransaction::adopt(tx, keys.outbox().cloned());
        Self { keys, tx, ask, attempt }
    }

    /// Returns the key that is held.
    #[must_use]
    pub fn id(&self) -> &KeyId {
        &self.ask.id
    }

    /// Returns the number of this attempt, from 1. Attempts that were rolled back left no trace and
    /// are not counted.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Stores the outcome and commits: every repeated request gets it. Runs to its end even if this
    /// call is dropped. When the answer to the commit is lost, the key shows the outcome.
    ///
    /// # Errors
    /// [`CommitError::Unknown`] when the database did not answer for half a minute; the next
    /// request with the key shows the outcome. After any other one nothing was committed: a
    /// statement had failed (even if its error was swallowed), or a statement of the caller's own
    /// ended the transaction.
    pub async fn commit(self, ending: Ending, outcome: &[u8]) -> Result<(), CommitError> {
        let outcome = outcome.to_vec();
        shield(async move { self.commit_here(ending, &outcome).await }).await
    }

    /// Rolls back everything that was written through it, and keeps the key: for a request that is
    /// refused after all, whose refusal is then [committed](Self::commit). Also works after a
    /// failed statement. Not cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`]; then roll back.
    pub async fn undo(&mut self) -> Result<(), StoreError> {
        self.keys
            .db()
            .call(DB::undo(&mut self.tx))
            .await
            .map_err(StoreError::during("roll back to the claim of the key"))?;
        self.tx.forget_calls();
        Ok(())
    }

    /// Rolls back now, and frees the key. Dropping does the same, later.
    ///
    /// # Errors
    /// [`StoreError`] when the database did not answer. The database rolls back when it notices the
    /// lost connection.
    pub async fn rollback(self) -> Result<(), StoreError> {
        let Self { keys, tx, .. } = self;
        let work = async move {
            keys.db().call(roll_back(tx.into_sqlx())).await.map_err(StoreError::during("roll back"))
        };
        shield(work).await
    }

    /// Does the same as [`commit`](Self::commit), for a caller that runs to its end anyway. Not
    /// cancel-safe.
    pub(crate) async fn commit_here(mut self, ending: Ending, outcome: &[u8]) -> Result<(), CommitError> {
        if !matches!(DB::is_open(&mut self.tx).await, Ok(true)) {
            return Err(CommitError::Ended);
        }
        self.tx.refuse_after_failure()?;
        let end = End { ending, outcome };
        let finish = self.keys.tables().finish(&mut self.tx, &self.ask, self.attempt, end);
        match self.keys.db().call(finish).await {
            Ok(true) => {}
            Ok(false) => return Err(CommitError::Ended),
            Err(error) => {
                let reason = "the outcome of its key could not be written, so an earlier statement may have aborted it";
                return Err(CommitError::RolledBack { reason, source: Some(Box::new(error)) });
            }
        }
        // After the check of the key: in a transaction that has ended, a message would be stored on
        // its own.
        let sealed = self.keys.db().any(self.tx.seal()).await;
        let sealed = sealed.unwrap_or_else(|error| Err(CommitError::Lost(Box::new(error))));
        let Sealed { tx, commit, wake } = sealed?;
        reached(crash_points::AFTER_OUTCOME);
        let committed = self.keys.db().call(tx.commit()).await;
        let committed = match committed.map_err(|error| CommitError::at(commit, error)) {
            Err(CommitError::Unknown { commit, source }) => {
                tracing::warn!(error = %source, "the connection was lost during a commit; looking up its \
                                                 key");
                resolve(&self.keys, &self.ask, commit, source).await
            }
            other => other,
        };
        telemetry::completed(self.ask.id.operation(), ending, committed.is_ok());
        committed?;
        if let Some(wake) = wake {
            wake.wake();
        }
        reached(crash_points::AFTER_COMPLETE);
        Ok(())
    }
}

/// Finds out the outcome of a commit. While the lost transaction runs, it holds the key. After that
/// the outcome is stored or not.
async fn resolve<DB: KeyStore>(
    keys: &IdempotencyKeys<DB>,
    ask: &Ask,
    commit: UnknownCommit,
    source: Box<dyn std::error::Error + Send + Sync>,
) -> Result<(), CommitError> {
    let until = Instant::now() + RESOLVE_MAX;
    let mut attempt = 1;
    loop {
        let reason = "the connection was lost, and the key has no outcome of this holder";
        match keys.db().call(look(keys, ask)).await {
            Ok(Found { record, .. }) if is_of(record.as_ref(), ask) => return Ok(()),
            // A standby that lags has no outcome either.
            Ok(Found { is_held: true, is_standby: false, .. }) => {
                return Err(CommitError::RolledBack { reason, source: Some(source) });
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "the database does not answer yet"),
        }
        let pause = RESOLVE_PAUSE.delay(attempt, 1.0);
        if Instant::now() + pause >= until {
            return Err(CommitError::Unknown { commit, source });
        }
        tokio::time::sleep(pause).await;
        attempt += 1;
    }
}

async fn look<DB: KeyStore>(keys: &IdempotencyKeys<DB>, ask: &Ask) -> Result<Found, sqlx::Error> {
    let mut tx = begin_holding(keys, ask).await?;
    let found = keys.tables().look(&mut tx, ask).await?;
    tx.rollback().await?;
    Ok(found)
}

fn is_of(record: Option<&Record>, ask: &Ask) -> bool {
    record.is_some_and(|record| record.holder == ask.asked.holder && matches!(record.state, State::Ended(_)))
}

impl<DB: KeyStore> Deref for KeyTransaction<DB> {
    type Target = OutboxTransaction<DB>;

    fn deref(&self) -> &Self::Target {
        &self.tx
    }
}

impl<DB: KeyStore> DerefMut for KeyTransaction<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.tx
    }
}
