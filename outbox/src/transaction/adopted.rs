//! Transactions that other parts of the toolkit use. The inbox and the idempotency keys begin and
//! commit them, with their own marks and commits; their callers get the same [`OutboxTransaction`]
//! as producers. Sagas are started in them.

use sqlx::Transaction;

use crate::dialect::Dialect;
use crate::enqueue_error::EnqueueError;
use crate::producer::Outbox;
use crate::transaction::commit::{CommitError, UnknownCommit};
use crate::transaction::failed_call::FailedCall;
use crate::transaction::ids::ReplayedIds;
use crate::transaction::wrapper::OutboxTransaction;
use crate::wake::CommitNotify;

/// A transaction whose messages are stored, so that it can be committed.
#[doc(hidden)]
#[derive(Debug)]
pub struct Sealed<DB: Dialect> {
    /// The transaction.
    pub tx: Transaction<'static, DB>,
    /// Its messages and its id, by which a commit without an answer is looked up.
    pub commit: UnknownCommit,
    /// The hint to give after the commit, if it contains messages.
    pub wake: Option<CommitNotify>,
}

impl<DB: Dialect> OutboxTransaction<DB> {
    /// Wraps a transaction that was begun elsewhere. Without an outbox it refuses to enqueue:
    /// [`EnqueueError::NoOutbox`].
    #[doc(hidden)]
    pub fn adopt(tx: Transaction<'static, DB>, outbox: Option<Outbox<DB>>) -> Self {
        Self::new(tx, outbox, ReplayedIds::default(), None)
    }

    /// Wraps a transaction that was begun with its own [mark](migrations::own_transaction::MARK),
    /// like [`adopt`](Self::adopt). Staged messages are stored only while it has the mark.
    #[doc(hidden)]
    pub fn adopt_marked(tx: Transaction<'static, DB>, outbox: Option<Outbox<DB>>) -> Self {
        Self::adopt(tx, outbox).marked()
    }

    /// Begins a call that stores rows which must commit with the transaction. Refuses after an
    /// earlier failed call. Until the call [ends](Self::end_call_of_another_part), the transaction
    /// cannot commit: a call that is dropped counts as failed.
    ///
    /// # Errors
    /// [`EnqueueError::Poisoned`].
    #[doc(hidden)]
    pub fn begin_call(&mut self) -> Result<(), EnqueueError> {
        if let Some(failed) = &self.failed {
            return Err(failed.refusal());
        }
        self.failed = Some(FailedCall::of(&EnqueueError::Dropped));
        Ok(())
    }

    /// Ends a call. A failed one prevents the commit.
    #[doc(hidden)]
    pub fn end_call_of_another_part(&mut self, failed: Option<FailedCall>) {
        self.failed = failed;
    }

    /// Returns the failed call that prevents this transaction from committing.
    #[doc(hidden)]
    #[must_use]
    pub fn failed_call(&self) -> Option<EnqueueError> {
        self.failed.as_ref().map(FailedCall::refusal)
    }

    /// Forgets its messages and its failed call. The caller has rolled everything back to a
    /// savepoint that is older than all of them.
    #[doc(hidden)]
    pub fn forget_calls(&mut self) {
        self.staged.clear();
        self.stored.clear();
        self.transaction = None;
        self.failed = None;
    }

    /// Stores the staged messages, and returns the transaction for a commit by its owner, who
    /// checks that it has not ended.
    ///
    /// # Errors
    /// [`CommitError`]; the transaction is dropped and rolls back. Not cancel-safe.
    #[doc(hidden)]
    pub async fn seal(mut self) -> Result<Sealed<DB>, CommitError> {
        self.refuse_after_failure()?;
        self.store_what_is_staged().await?;
        let outbox = self.outbox.filter(|_| !self.stored.is_empty());
        let wake = outbox.map(|outbox| outbox.wake_up());
        let commit = UnknownCommit { message_ids: self.stored, transaction: self.transaction };
        Ok(Sealed { tx: self.tx, commit, wake })
    }

    /// Returns the transaction, for a rollback by its owner.
    #[doc(hidden)]
    #[must_use]
    pub fn into_sqlx(self) -> Transaction<'static, DB> {
        self.tx
    }
}
