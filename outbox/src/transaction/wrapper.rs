//! A transaction that refuses to commit after an enqueue that failed or was dropped half-way, and
//! that verifies before its commit that it is still alive.

use std::ops::{Deref, DerefMut};

use message::crash_points::reached;
use message::{IntoMessage, MessageId, NewMessage, Prepared, TraceContext};
use migrations::SqlErrorKind;
use migrations::own_transaction::roll_back;
use sqlx::{Pool, Transaction};

use crate::begin::begin_on;
use crate::bounded::Bounded;
use crate::crash_points;
use crate::dialect::{Dialect, Requires};
use crate::enqueue_error::EnqueueError;
use crate::failure::is_aborted_transaction;
use crate::producer::{Enqueued, Outbox};
use crate::store::{self, Batch};
use crate::transaction::commit::{CommitError, UnknownCommit};
use crate::transaction::failed_call::FailedCall;
use crate::transaction::ids::ReplayedIds;

/// A database transaction and the messages in it. It dereferences to the connection like
/// [`sqlx::Transaction`]: business SQL runs on `&mut *tx`, and `tx.begin()` begins a savepoint.
///
/// Always await that `begin()`. When it is dropped before its answer (`timeout`, `select!`) or
/// refused, sqlx ends the whole transaction. Later rows would not be stored with it, so
/// [`commit`](Self::commit) and every enqueue then refuse.
///
/// Any error of its `enqueue`, `enqueue_batch` or `stage` makes it unusable, as does dropping one
/// of these calls before it ends: [`commit`](Self::commit) then refuses. So does a failed start of
/// a saga in it, or a failed reply to one. Errors of [`Outbox::enqueue`] on the inner transaction
/// do not, because they bypass this type. Dropping the transaction rolls it back.
#[derive(Debug)]
#[must_use = "dropping a transaction rolls it back"]
pub struct OutboxTransaction<DB: Dialect> {
    pub(super) tx: Transaction<'static, DB>,
    /// `None` for a consumer or a key without an outbox.
    pub(super) outbox: Option<Outbox<DB>>,
    ids: ReplayedIds,
    inherited: Option<TraceContext>,
    pub(super) staged: Vec<Prepared>,
    pub(super) stored: Vec<MessageId>,
    pub(super) transaction: Option<String>,
    /// The condition for storing the staged messages: the mark, if an outbox has begun the
    /// transaction. Its other owners have their own marks.
    requires: Requires,
    /// The first call that failed.
    pub(super) failed: Option<FailedCall>,
}

impl<DB: Dialect> Outbox<DB> {
    /// Begins a transaction on a connection of the pool; on SQLite with the write lock (`BEGIN
    /// IMMEDIATE`) and with a commit that waits for the disk (`PRAGMA synchronous` at least FULL,
    /// which the connection keeps).
    ///
    /// Cancel-safe, on any pool: if it is dropped, for example in `select!` or `timeout`, the
    /// transaction is rolled back, or its connection is closed if the database does not answer
    /// within 10 s. A `begin` of sqlx itself is not.
    ///
    /// # Errors
    /// [`EnqueueError::Database`] when the database is unavailable or, on SQLite, busy for too
    /// long.
    pub async fn begin(&self, pool: &Pool<DB>) -> Result<OutboxTransaction<DB>, EnqueueError> {
        Ok(self.begun(begin_marked(pool).await?))
    }

    /// Does the same within the limits of a pool ([`Bounded::begin`]).
    ///
    /// # Errors
    /// As for [`begin`](Self::begin).
    #[doc(hidden)]
    pub async fn begin_in_time(&self, db: &Bounded<DB>) -> Result<OutboxTransaction<DB>, EnqueueError> {
        Ok(self.begun(db.begin(DB::begin_marked).await?))
    }

    fn begun(&self, tx: Transaction<'static, DB>) -> OutboxTransaction<DB> {
        OutboxTransaction::new(tx, Some(self.clone()), ReplayedIds::default(), None).marked()
    }
}

/// Begins a transaction with the mark of an outbox. Cancel-safe.
pub(super) async fn begin_marked<DB: Dialect>(
    pool: &Pool<DB>,
) -> Result<Transaction<'static, DB>, sqlx::Error> {
    let connection = DB::acquire_outside(pool).await?;
    begin_on(connection, DB::begin_marked).await
}

impl<DB: Dialect> OutboxTransaction<DB> {
    pub(crate) fn new(
        tx: Transaction<'static, DB>,
        outbox: Option<Outbox<DB>>,
        mut ids: ReplayedIds,
        inherited: Option<TraceContext>,
    ) -> Self {
        ids.rewind();
        Self {
            tx,
            outbox,
            ids,
            inherited,
            staged: Vec::new(),
            stored: Vec::new(),
            transaction: None,
            requires: Requires::Nothing,
            failed: None,
        }
    }

    /// Says that [`begin_marked`](migrations::Backend::begin_marked) has begun it.
    pub(crate) fn marked(self) -> Self {
        Self { requires: Requires::Mark, ..self }
    }

    /// Returns the inner transaction, for functions that require one.
    pub fn as_sqlx(&mut self) -> &mut Transaction<'static, DB> {
        &mut self.tx
    }

    /// Returns the connection, for `execute` and `fetch`; `&mut *tx` is the same.
    pub fn connection(&mut self) -> &mut DB::Connection {
        &mut self.tx
    }

    /// Enqueues a message now.
    ///
    /// # Errors
    /// [`EnqueueError`]. The transaction is then unusable. Not cancel-safe: a dropped call also
    /// makes it unusable.
    pub async fn enqueue(&mut self, message: impl IntoMessage) -> Result<Enqueued, EnqueueError> {
        self.begin_call()?;
        let done = match self.prepare(message.into_message()) {
            Ok(prepared) => self.store_one(&prepared, Requires::Nothing).await,
            Err(error) => Err(error),
        };
        self.end_call(done)
    }

    /// Enqueues many messages in one round trip, all or none. The answers are in the order of the
    /// messages.
    ///
    /// # Errors
    /// As for [`enqueue`](Self::enqueue), for the first message that fails.
    pub async fn enqueue_batch(
        &mut self,
        messages: impl IntoIterator<Item: IntoMessage> + Send,
    ) -> Result<Vec<Enqueued>, EnqueueError> {
        self.begin_call()?;
        let prepared: Result<Vec<_>, _> =
            messages.into_iter().map(|message| self.prepare(message.into_message())).collect();
        let done = match prepared {
            Ok(prepared) => self.store_all(prepared, Requires::Nothing).await.map(|batch| batch.answers),
            Err(error) => Err(error),
        };
        self.end_call(done)
    }

    /// Checks a message and keeps it. All staged messages are stored in one statement right before
    /// COMMIT. Their positions in the log are then allocated while the locks on the business rows
    /// are held. When two transactions change one aggregate, its messages are therefore published
    /// in the order of the commits.
    ///
    /// # Errors
    /// [`EnqueueError::Invalid`] or [`EnqueueError::Oversize`]. The transaction is then unusable.
    pub fn stage(&mut self, message: impl IntoMessage) -> Result<MessageId, EnqueueError> {
        self.begin_call()?;
        let prepared = self.prepare(message.into_message());
        let prepared = self.end_call(prepared)?;
        let id = prepared.message.id;
        self.staged.push(prepared);
        Ok(id)
    }

    /// Returns whether messages are staged that [`commit`](Self::commit) will store.
    #[must_use]
    pub fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Stores the staged messages, verifies that the transaction is still alive, and commits.
    ///
    /// On PostgreSQL a statement error that the caller has swallowed would turn `COMMIT` into a
    /// silent rollback. This is detected beforehand. Not cancel-safe: a dropped commit has probably
    /// happened. Await it in a separate task, as [`Outbox::transaction`] does.
    ///
    /// # Errors
    /// [`CommitError`]. Nothing is stored; with [`CommitError::Unknown`] everything may be.
    pub async fn commit(self) -> Result<(), CommitError> {
        self.finish(false).await
    }

    /// Like [`commit`](Self::commit), for a caller whose last statement in it succeeded and changed
    /// rows. Skips the check that the transaction is alive, unless it contains messages.
    ///
    /// # Errors
    /// [`CommitError`], as for [`commit`](Self::commit).
    #[doc(hidden)]
    pub async fn commit_alive(self) -> Result<(), CommitError> {
        self.finish(true).await
    }

    async fn finish(mut self, is_alive: bool) -> Result<(), CommitError> {
        self.refuse_after_failure()?;
        self.check_open().await?;
        if self.staged.is_empty() && (!is_alive || self.transaction.is_some()) {
            self.probe().await?;
        }
        self.store_what_is_staged().await?;
        let commit = UnknownCommit { message_ids: self.stored, transaction: self.transaction };
        reached(crash_points::BEFORE_COMMIT);
        match self.tx.commit().await {
            Ok(()) => {
                reached(crash_points::AFTER_COMMIT);
                if let Some(outbox) = self.outbox.filter(|_| !commit.message_ids.is_empty()) {
                    outbox.settings.wake.wake();
                }
                Ok(())
            }
            Err(error) => Err(CommitError::at(commit, error)),
        }
    }

    /// Refuses if a call in the transaction failed.
    ///
    /// # Errors
    /// [`CommitError::Poisoned`].
    #[doc(hidden)]
    pub fn refuse_after_failure(&mut self) -> Result<(), CommitError> {
        self.failed.take().map_or(Ok(()), |failed| Err(failed.into()))
    }

    pub(super) async fn store_what_is_staged(&mut self) -> Result<(), CommitError> {
        let staged = std::mem::take(&mut self.staged);
        if staged.is_empty() {
            return Ok(());
        }
        let before = self.transaction.take();
        self.store_staged(staged).await.map_err(staged_error)?;
        // The messages return their transaction's id. The mark alone does not show that another
        // owner's transaction is still the same.
        if before.is_some() && self.transaction.is_some() && before != self.transaction {
            return Err(CommitError::Ended);
        }
        self.transaction = self.transaction.take().or(before);
        Ok(())
    }

    /// Rolls back: neither business rows nor messages remain. Dropping the transaction also rolls
    /// it back, but later.
    ///
    /// # Errors
    /// [`EnqueueError::Database`] when the database became unavailable. It then rolls back on its
    /// own.
    pub async fn rollback(self) -> Result<(), EnqueueError> {
        Ok(roll_back(self.tx).await?)
    }

    pub(crate) fn take_ids(&mut self) -> ReplayedIds {
        std::mem::take(&mut self.ids)
    }

    async fn check_open(&mut self) -> Result<(), CommitError> {
        let is_open = DB::is_open(&mut self.tx).await.map_err(|error| CommitError::Lost(Box::new(error)))?;
        if is_open { Ok(()) } else { Err(CommitError::Ended) }
    }

    /// Runs a cheap statement. It fails in an aborted transaction, and checks for this
    /// transaction's mark.
    async fn probe(&mut self) -> Result<(), CommitError> {
        let is_marked = DB::is_marked(&mut self.tx).await.map_err(CommitError::before)?;
        if is_marked { Ok(()) } else { Err(CommitError::Ended) }
    }

    fn end_call<T>(&mut self, done: Result<T, EnqueueError>) -> Result<T, EnqueueError> {
        self.failed = done.as_ref().err().map(FailedCall::of);
        done
    }

    fn prepare(&mut self, message: NewMessage) -> Result<Prepared, EnqueueError> {
        let outbox = self.outbox.as_ref().ok_or(EnqueueError::NoOutbox)?;
        let (tape, ids) = (&mut self.ids, &*outbox.settings.ids);
        outbox.prepare(message, || tape.next(ids), self.inherited.as_ref())
    }

    /// Stores all staged messages in one statement.
    async fn store_staged(&mut self, staged: Vec<Prepared>) -> Result<(), EnqueueError> {
        match staged.as_slice() {
            [prepared] => self.store_one(prepared, self.requires).await.map(drop),
            _ => self.store_all(staged, self.requires).await.map(drop),
        }
    }

    async fn store_one(&mut self, prepared: &Prepared, requires: Requires) -> Result<Enqueued, EnqueueError> {
        let outbox = self.outbox.as_ref().ok_or(EnqueueError::NoOutbox)?;
        let single = store::store_one::<DB>(&mut self.tx, &outbox.settings, prepared, requires).await?;
        if !single.answer.is_duplicate() {
            self.stored.push(single.answer.message_id());
        }
        self.transaction = self.transaction.take().or(single.transaction);
        Ok(single.answer)
    }

    async fn store_all(
        &mut self,
        messages: Vec<Prepared>,
        requires: Requires,
    ) -> Result<Batch, EnqueueError> {
        let outbox = self.outbox.as_ref().ok_or(EnqueueError::NoOutbox)?;
        let batch = store::store_all::<DB>(&mut self.tx, &outbox.settings, messages, requires).await?;
        self.stored.extend(batch.stored());
        self.transaction = self.transaction.take().or_else(|| batch.transaction.clone());
        Ok(batch)
    }
}

/// Translates an error of storing staged messages. This may be the first statement to notice that
/// the transaction had already failed.
fn staged_error(error: EnqueueError) -> CommitError {
    match error {
        EnqueueError::Database { source, retryable } => match source.downcast_ref::<sqlx::Error>() {
            Some(inner) if is_aborted_transaction(inner) => CommitError::Aborted(source),
            Some(inner) if SqlErrorKind::of(inner) == SqlErrorKind::Lost => CommitError::Lost(source),
            _ => CommitError::Staged(EnqueueError::Database { source, retryable }),
        },
        EnqueueError::Ended => CommitError::Ended,
        error => CommitError::Staged(error),
    }
}

impl<DB: Dialect> Deref for OutboxTransaction<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &Self::Target {
        &self.tx
    }
}

impl<DB: Dialect> DerefMut for OutboxTransaction<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.tx
    }
}
