//! The store of a real consumer: its inbox, and the handler that works in its transactions.

use std::sync::Arc;
use std::time::Duration;

use message::{Committed, Delivery, Message, MessageId, shield};
use time::OffsetDateTime;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::store::{Admitted, AdmittedBatch, Store};
use crate::activity::Counts;
use crate::attempts::{Attempt, Failed, Failures, Forget, InHand};
use crate::batch::Candidate;
use crate::chunks::Gathered;
use crate::dead_letters::{AfterDeadLetter, Cause, DeadLetter};
use crate::dialect::Dialect;
use crate::error::{AdmitError, CommitError, OpenError};
use crate::guard::{Admission, Guard};
use crate::handler::{Handler, HandlerError, Received, refuse_swallowed};
use crate::ids::{ConsumerName, DeadLetterId, Key, MessageName, Tenant, key};
use crate::inbox::Inbox;
use crate::store_error::StoreError;
use crate::transaction::InboxTransaction;
use crate::within::{MAINTENANCE_MAX, within};

/// A consumer's inbox and handler.
pub(super) struct InboxStore<DB: Dialect> {
    pub(super) inbox: Inbox<DB>,
    pub(super) consumer: ConsumerName,
    pub(super) handler: Arc<dyn Handler<DB>>,
    pub(super) handler_timeout: Duration,
    pub(super) after_dead_letter: AfterDeadLetter,
    pub(super) guarded: bool,
    /// The id of this process in its notes of messages in hand.
    pub(super) process: Uuid,
    /// Cancelled when the consumer stops and no further redrive may begin.
    pub(super) draining: CancellationToken,
    /// Cancelled when running redrives are abandoned.
    pub(super) stopping: CancellationToken,
}

impl<DB: Dialect> InboxStore<DB> {
    fn keys<'a>(&'a self, messages: &[MessageName<'a>]) -> Vec<Key<'a>> {
        messages.iter().map(|message| message.key(&self.consumer)).collect()
    }

    /// Waits for a call up to the limit in the inbox's options. Drop a transaction in which a call
    /// did not answer.
    pub(super) async fn within<T, E: From<StoreError>>(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        within(self.inbox.options().call_timeout, what, call).await
    }

    /// Redrives, unless the consumer stops before. If redrives are abandoned meanwhile, the work is
    /// dropped, which rolls its transaction back, and there is no result.
    pub(super) async fn unless_stopped<T>(&self, redrive: impl Future<Output = T>) -> Option<T> {
        if self.draining.is_cancelled() {
            return None;
        }
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => None,
            done = redrive => Some(done),
        }
    }

    /// Notes that this process has not begun the redrive of a dead letter.
    pub(super) async fn leave_letter(&self, key: Key<'_>) -> Result<(), StoreError> {
        let call = self.inbox.leave_letter(key, self.process);
        self.within("note that a redrive has not begun", call).await
    }

    /// Records that this process has ended the redrive of a dead letter. Also deletes its failures
    /// if the message is finished.
    pub(super) async fn put_letter_down(&self, key: Key<'_>, is_over: bool) -> Result<(), StoreError> {
        let call = self.inbox.put_letter_down(key, is_over);
        self.within("note that a redrive has ended", call).await
    }
}

fn admitted<DB: Dialect>(admission: Admission<DB>) -> Admitted<Guard<DB>> {
    match admission {
        Admission::Fresh(guard) => Ok(guard),
        Admission::Duplicate(duplicate) => Err(duplicate),
    }
}

impl<DB: Dialect> Store for InboxStore<DB> {
    type Tx = InboxTransaction<DB>;
    type Guard = Guard<DB>;

    fn now(&self) -> OffsetDateTime {
        self.inbox.window().now
    }

    async fn begin(&self) -> Result<Self::Tx, StoreError> {
        self.inbox.begin().await
    }

    async fn admit(
        &self,
        tx: &mut Self::Tx,
        tenant: &Tenant,
        message: &Message,
    ) -> Result<Admitted<Self::Guard>, AdmitError> {
        if !self.guarded {
            return Ok(Ok(tx.admit_unguarded(&self.consumer, tenant, message)));
        }
        self.within("admit a message", tx.admit(&self.consumer, tenant, message)).await.map(admitted)
    }

    /// Gathers even without the guard: a handler does not expect a fragment.
    async fn gather(
        &self,
        tx: &mut Self::Tx,
        tenant: &Tenant,
        message: &Message,
    ) -> Result<Gathered, AdmitError> {
        self.within("assemble a message", tx.gather(&self.consumer, tenant, message)).await
    }

    async fn admit_batch(
        &self,
        tx: &mut Self::Tx,
        candidates: &[Candidate<'_>],
    ) -> Result<AdmittedBatch<Self::Guard>, AdmitError> {
        if !self.guarded {
            let unguarded = |candidate: &Candidate<'_>| {
                Ok(Ok(tx.admit_unguarded(&self.consumer, &candidate.tenant, candidate.message)))
            };
            return Ok(candidates.iter().map(unguarded).collect());
        }
        let call = tx.admit_batch_uncounted(&self.consumer, candidates);
        let admissions = self.within("admit messages", call).await?;
        Ok(admissions.into_iter().map(|admission| admission.map(admitted)).collect())
    }

    async fn holders(
        &self,
        tx: &mut Self::Tx,
        candidates: &[Candidate<'_>],
    ) -> Result<Vec<Option<DeadLetterId>>, StoreError> {
        if !self.guarded {
            return Ok(vec![None; candidates.len()]);
        }
        let call = self.inbox.holders_of(tx, &self.consumer, candidates);
        self.within("find the dead letter that holds a key", call).await
    }

    async fn handle(
        &self,
        tx: &mut Self::Tx,
        message: &Message,
        received: &Received,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        let result = self.handler.handle_delivery(tx, message, received).await?;
        refuse_swallowed(tx)?;
        Ok(result)
    }

    fn has_effect(&self, message: &Message) -> bool {
        self.handler.has_effect(&message.kind)
    }

    fn takes_many(&self, message: &Message) -> bool {
        self.handler.takes_many(&message.kind)
    }

    async fn handle_many(
        &self,
        tx: &mut Self::Tx,
        messages: &[&Message],
        received: &[Received],
    ) -> Result<(), HandlerError> {
        self.handler.handle_many(tx, messages, received).await?;
        refuse_swallowed(tx)
    }

    async fn complete(&self, tx: &mut Self::Tx, guard: Self::Guard, result: &[u8]) -> Result<(), StoreError> {
        if !self.guarded {
            return Ok(());
        }
        self.within("store a message's result", guard.complete(tx, result)).await
    }

    async fn take_in_hand(&self, messages: &[MessageName<'_>]) -> Result<Vec<InHand>, StoreError> {
        let what = "record the messages in hand";
        let keys = self.keys(messages);
        let call = async {
            let mut connection = self.inbox.acquire(what).await?;
            let taken = DB::take_in_hand(&mut connection, self.inbox.tables(), &keys, self.process)
                .await
                .map_err(StoreError::during(what))?;
            if taken.iter().any(|in_hand| in_hand.failures > 0) {
                // Their next attempts are due by the current clock, not by the one of the last
                // reading.
                self.inbox.refresh_on(&mut connection).await?;
            }
            Ok(taken)
        };
        self.within(what, call).await
    }

    async fn is_being_handled(&self, tenant: &Tenant, id: MessageId) -> Result<bool, StoreError> {
        let call = self.inbox.is_being_handled(&self.consumer, tenant, id);
        self.within("check whether a message is being handled", call).await
    }

    async fn take_over(&self, tenant: &Tenant, id: MessageId, owner: Uuid) -> Result<(), StoreError> {
        let what = "take over a message";
        let call = async {
            let mut connection = self.inbox.acquire(what).await?;
            let key = key(&self.consumer, tenant, id);
            self.inbox
                .tables()
                .take_over(&mut connection, key, owner, self.process)
                .await
                .map_err(StoreError::during(what))
        };
        self.within(what, call).await
    }

    async fn put_down(&self, messages: &[MessageName<'_>]) -> Result<(), StoreError> {
        let what = "record that messages are no longer in hand";
        let keys = self.keys(messages);
        let call = async {
            let mut connection = self.inbox.acquire(what).await?;
            DB::put_down(&mut connection, self.inbox.tables(), &keys, self.process)
                .await
                .map_err(StoreError::during(what))
        };
        self.within(what, call).await
    }

    async fn forget_attempts(
        &self,
        tx: &mut Self::Tx,
        messages: &[MessageName<'_>],
        forget: Forget,
    ) -> Result<(), StoreError> {
        let what = "delete the attempts of a message that succeeded";
        let keys = self.keys(messages);
        let call = async {
            // In a transaction that has ended, the failures would be forgotten without the effect.
            tx.check_rows().await?;
            let tables = self.inbox.tables();
            DB::forget_attempts(tx, tables, &keys, forget).await.map_err(StoreError::during(what))
        };
        self.within(what, call).await
    }

    async fn commit(&self, tx: Self::Tx) -> Result<Vec<Committed>, CommitError> {
        tx.commit().await
    }

    async fn rollback(&self, tx: Self::Tx) -> Result<(), StoreError> {
        tx.rollback().await
    }

    async fn discard(&self, tx: Self::Tx) -> Result<(), StoreError> {
        tx.discard().await
    }

    async fn interrupt(&self, guard: &Self::Guard) -> Result<(), StoreError> {
        guard.interrupt().await
    }

    async fn record_failure(
        &self,
        tenant: &Tenant,
        id: MessageId,
        failed: Failed<'_>,
    ) -> Result<Failures, StoreError> {
        self.within("note a failure", self.inbox.note_failure(&self.consumer, tenant, id, failed)).await
    }

    async fn attempt(&self, tenant: &Tenant, id: MessageId) -> Result<Option<Attempt>, StoreError> {
        self.within(
            "look up the failed attempts of a message",
            self.inbox.attempt(&self.consumer, tenant, id),
        )
        .await
    }

    async fn dead_letter(
        &self,
        tenant: &Tenant,
        delivery: &Delivery,
        cause: Cause,
    ) -> Result<Committed, StoreError> {
        let letter = DeadLetter::of(delivery, &self.consumer, tenant, cause);
        self.within("dead-letter", self.inbox.store_letter(&self.consumer, letter, None)).await
    }

    async fn dead_letter_whole(
        &self,
        tenant: &Tenant,
        delivery: &Delivery,
        whole: &Message,
        cause: Cause,
    ) -> Result<Committed, StoreError> {
        let call = self.inbox.store_whole_letter(&self.consumer, tenant, delivery, whole, cause);
        self.within("dead-letter", call).await
    }

    async fn redrive_requested(&self, after: i64, ends_at: Instant) -> Result<Option<i64>, StoreError> {
        self.carry_out_requests(after, ends_at).await
    }

    fn begin_no_redrives(&self) {
        self.draining.cancel();
    }

    fn stop_redrives(&self) {
        self.draining.cancel();
        self.stopping.cancel();
    }

    async fn add_counts(&self, counts: Counts) -> Result<(), StoreError> {
        self.within("store the counts", self.inbox.add_counts(&self.consumer, counts)).await
    }

    async fn maintain(&self) -> Result<(), OpenError> {
        let (inbox, consumer) = (self.inbox.clone(), self.consumer.clone());
        // An aborted caller must not interrupt a transaction.
        let work = async move {
            within(MAINTENANCE_MAX, "maintain the inbox", inbox.maintain_for(Some(&consumer))).await
        };
        let maintained = shield(work).await?;
        tracing::debug!(?maintained, "inbox maintained");
        Ok(())
    }
}
