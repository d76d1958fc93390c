//! The runner's view of a database: an inbox and the handler that works in its transactions.
//!
//! The runner decides when to try again, what to give up and what to settle. Everything that
//! touches a transaction is behind [`Store`]. [`InboxStore`] is the real store. A simulation brings
//! its own, to fail at every step.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use message::{Committed, Delivery, Message, MessageId, shield};
use time::OffsetDateTime;
use tokio::time::Instant;
use uuid::Uuid;

use super::held_keys::HeldMessages;
use super::redrive::BoundedHandler;
use crate::attempts::{Attempt, Failed, Failures, Forget, InHand, error_text};
use crate::batch::Candidate;
use crate::chunks::Gathered;
use crate::dead_letter::{DeadLetterId, Reason};
use crate::decision::Decision;
use crate::dialect::{Dialect, Key};
use crate::error::{AdmitError, CommitError, OpenError};
use crate::guard::{Admission, Duplicate, Guard, key};
use crate::handler::{Handler, HandlerError, refuse_swallowed};
use crate::held_keys::AfterDeadLetter;
use crate::inbox::Inbox;
use crate::minutes::Counts;
use crate::name::{ConsumerName, Tenant};
use crate::received::Received;
use crate::redrive::Taken;
use crate::refusal::Refusal;
use crate::store_error::StoreError;
use crate::transaction::InboxTransaction;
use crate::within::{MAINTENANCE_MAX, within};

/// The admission of a message that was not refused: the right to apply it, or a duplicate.
pub type Admitted<G> = Result<G, Duplicate>;

/// The admission of each message of a batch, or its refusal.
pub type AdmittedBatch<G> = Vec<Result<Admitted<G>, Refusal>>;

/// The operations of the runner on a database, for one consumer. A transaction that is dropped
/// rolls back.
pub trait Store: HeldMessages {
    /// An open transaction.
    type Tx: Send;
    /// The right to apply one message's effect in the transaction that admitted it.
    type Guard: Send + Sync;

    /// Returns the database's time.
    fn now(&self) -> OffsetDateTime;

    /// Begins a transaction.
    fn begin(&self) -> impl Future<Output = Result<Self::Tx, StoreError>> + Send;

    /// Admits a message.
    fn admit(
        &self,
        tx: &mut Self::Tx,
        scope: &Tenant,
        message: &Message,
    ) -> impl Future<Output = Result<Admitted<Self::Guard>, AdmitError>> + Send;

    /// Gathers the chunks of a message; called for chunks only. A store that keeps no chunks
    /// refuses them.
    fn gather(
        &self,
        _tx: &mut Self::Tx,
        _scope: &Tenant,
        message: &Message,
    ) -> impl Future<Output = Result<Gathered, AdmitError>> + Send {
        let gathered = match Refusal::of_fragment(message) {
            Some(refusal) => Err(refusal.into()),
            None => Ok(Gathered::Whole(message.clone())),
        };
        std::future::ready(gathered)
    }

    /// Admits many messages. Returns a result per message, in their order.
    fn admit_batch(
        &self,
        tx: &mut Self::Tx,
        candidates: &[Candidate<'_>],
    ) -> impl Future<Output = Result<AdmittedBatch<Self::Guard>, AdmitError>> + Send;

    /// Returns the open dead letter that holds the key of each of these messages, in their order.
    /// Called after they were admitted, if the consumer holds keys.
    fn holders(
        &self,
        _tx: &mut Self::Tx,
        candidates: &[Candidate<'_>],
    ) -> impl Future<Output = Result<Vec<Option<DeadLetterId>>, StoreError>> + Send {
        std::future::ready(Ok(vec![None; candidates.len()]))
    }

    /// Applies the effect of a fresh message.
    fn handle(
        &self,
        tx: &mut Self::Tx,
        message: &Message,
        received: &Received,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, HandlerError>> + Send;

    /// Returns whether messages like this one have an effect here; one without is never held.
    fn has_effect(&self, _message: &Message) -> bool {
        true
    }

    /// Returns whether the effects of many messages like this one are applied in one call.
    fn takes_many(&self, _message: &Message) -> bool {
        false
    }

    /// Applies the effects of fresh messages of one kind, in their order.
    fn handle_many(
        &self,
        tx: &mut Self::Tx,
        messages: &[&Message],
        received: &[Received],
    ) -> impl Future<Output = Result<(), HandlerError>> + Send {
        async move {
            for (message, received) in messages.iter().zip(received) {
                self.handle(tx, message, received).await?;
            }
            Ok(())
        }
    }

    /// Stores the result that the handler returned.
    fn complete(
        &self,
        tx: &mut Self::Tx,
        guard: Self::Guard,
        result: &[u8],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Notes that this process has messages in hand, before their handlers run: if a handler ends
    /// the process, the next process finds the note. Messages noted by another process stay its own
    /// until they are [taken over](Self::take_over). Returns results in the order of `messages`. By
    /// default a store keeps no such notes and returns failures only.
    fn take_in_hand(
        &self,
        messages: &[(&Tenant, MessageId)],
    ) -> impl Future<Output = Result<Vec<InHand>, StoreError>> + Send {
        async move {
            let mut taken = Vec::with_capacity(messages.len());
            for (scope, id) in messages {
                let attempt = self.attempt(scope, *id).await?;
                let next_at = attempt.as_ref().map_or_else(|| self.now(), |attempt| attempt.next_at);
                let failures = attempt.map_or(0, |attempt| attempt.attempts);
                taken.push(InHand { failures, ends: 0, owner: None, next_at });
            }
            Ok(taken)
        }
    }

    /// Returns whether the handler of a message runs now, in any process.
    fn is_being_handled(
        &self,
        _scope: &Tenant,
        _id: MessageId,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        std::future::ready(Ok(false))
    }

    /// Counts that a message's owner has ended, and notes that this process has it in hand. Does
    /// nothing when a third process did so before.
    fn take_over(
        &self,
        _scope: &Tenant,
        _id: MessageId,
        _owner: Uuid,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Removes the notes of [`take_in_hand`](Self::take_in_hand) for messages that were not
    /// handled.
    fn put_down(
        &self,
        _messages: &[(&Tenant, MessageId)],
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Forgets the attempts of those of these messages that `forget` names, in this transaction.
    /// The attempts of a message that is not applied here stay: a copy or a chunk shows nothing
    /// about its handler.
    fn forget_attempts(
        &self,
        tx: &mut Self::Tx,
        messages: &[(&Tenant, MessageId)],
        forget: Forget,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Commits. Returns one proof per admitted message, in the order of admission.
    fn commit(&self, tx: Self::Tx) -> impl Future<Output = Result<Vec<Committed>, CommitError>> + Send;

    /// Rolls back, and waits until that is done.
    fn rollback(&self, tx: Self::Tx) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Does the same as [`rollback`](Self::rollback), after an error of the session alone, which
    /// must not affect the next transaction.
    fn discard(&self, tx: Self::Tx) -> impl Future<Output = Result<(), StoreError>> + Send {
        self.rollback(tx)
    }

    /// Interrupts the running statement of a guard's transaction, which can only be rolled back
    /// after that.
    fn interrupt(&self, _guard: &Self::Guard) -> impl Future<Output = Result<(), StoreError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Notes a failure; counts it if it has a pause.
    fn record_failure(
        &self,
        scope: &Tenant,
        id: MessageId,
        failed: Failed<'_>,
    ) -> impl Future<Output = Result<Failures, StoreError>> + Send;

    /// Returns the failures of a message so far.
    fn attempt(
        &self,
        scope: &Tenant,
        id: MessageId,
    ) -> impl Future<Output = Result<Option<Attempt>, StoreError>> + Send;

    /// Dead-letters a delivery. Returns the proof that settles it.
    fn dead_letter(
        &self,
        scope: &Tenant,
        delivery: &Delivery,
        cause: (Reason, String, u32),
    ) -> impl Future<Output = Result<Committed, StoreError>> + Send;

    /// Dead-letters the whole message that the chunk of a delivery completed, and forgets its
    /// chunks.
    fn dead_letter_whole(
        &self,
        scope: &Tenant,
        delivery: &Delivery,
        _whole: &Message,
        cause: (Reason, String, u32),
    ) -> impl Future<Output = Result<Committed, StoreError>> + Send {
        self.dead_letter(scope, delivery, cause)
    }

    /// Carries out redrives that operators requested, from the request after `after` until
    /// `ends_at`. Returns the last request handled if there may be more.
    fn redrive_requested(
        &self,
        _after: i64,
        _ends_at: Instant,
    ) -> impl Future<Output = Result<Option<i64>, StoreError>> + Send {
        std::future::ready(Ok(None))
    }

    /// Stores counts; by default a store drops them.
    fn add_counts(&self, _counts: Counts) -> impl Future<Output = Result<(), StoreError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Creates coming days and forgets expired ones. Runs to its end even if it is dropped.
    fn maintain(&self) -> impl Future<Output = Result<(), OpenError>> + Send;
}

/// A consumer's inbox and handler.
pub(super) struct InboxStore<DB: Dialect> {
    pub(super) inbox: Inbox<DB>,
    pub(super) consumer: ConsumerName,
    pub(super) handler: Arc<dyn Handler<DB>>,
    pub(super) handler_timeout: Duration,
    pub(super) after_dead_letter: AfterDeadLetter,
    pub(super) guarded: bool,
    /// The id of this process in notes of what it has in hand.
    pub(super) process: Uuid,
}

impl<DB: Dialect> InboxStore<DB> {
    fn keys<'a>(&'a self, messages: &[(&'a Tenant, MessageId)]) -> Vec<Key<'a>> {
        let consumer = self.consumer.as_str();
        let key = |(scope, id): &(&'a Tenant, MessageId)| {
            let (scope, id) = (scope.as_str(), id.as_uuid());
            Key { consumer, scope, id }
        };
        messages.iter().map(key).collect()
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

    /// Carries out a requested redrive, and leaves a note for the next process meanwhile.
    async fn carry_out(&self, request: &Decision) -> Result<(), StoreError> {
        let mut ended = None;
        let noted = loop {
            let call = self.inbox.take_request(request, self.process, ended);
            match self.within("note what is redriven", call).await? {
                Taken::Elsewhere => return Ok(()),
                Taken::Unnamed => break None,
                Taken::OfAnother(owner) => {
                    tokio::time::sleep(BEGINS_WITHIN).await;
                    ended = Some(owner);
                }
                Taken::Noted { letter, given_up: Some(error) } => {
                    self.put_letter_down(letter.key(), true).await?;
                    tracing::error!(dead_letter = %letter.id, error, "a redrive that was requested is given up");
                    let call = self.inbox.fail_request(request.number, &error);
                    return self.within("note what came of a redrive", call).await;
                }
                Taken::Noted { letter, given_up: None } => break Some(letter),
            }
        };
        let handler = BoundedHandler(self);
        let call = self.inbox.carry_out(&self.consumer, request, &handler, self.after_dead_letter);
        let done = within(self.redrive_max(), "redrive", call).await;
        if let Some(letter) = noted {
            match done {
                Ok(false) => self.leave_letter(letter.key()).await?,
                _ => self.put_letter_down(letter.key(), false).await?,
            }
        }
        done.map(drop)
    }

    pub(super) async fn leave_letter(&self, key: Key<'_>) -> Result<(), StoreError> {
        let call = self.inbox.leave_letter(key, self.process);
        self.within("note that a redrive has not begun", call).await
    }

    pub(super) async fn put_letter_down(&self, key: Key<'_>, is_over: bool) -> Result<(), StoreError> {
        let call = self.inbox.put_letter_down(key, is_over);
        self.within("note that a redrive has ended", call).await
    }
}

/// Maximum time in which a process begins to handle what it has noted to be in hand. One that has
/// not begun by then has ended.
pub(super) const BEGINS_WITHIN: Duration = Duration::from_secs(1);

/// Number of consecutive requests that may fail transiently before the database counts as
/// unavailable.
const REDRIVES_FAILED_MAX: u32 = 3;

/// Maximum number of requests for redrives per read.
const REDRIVES: u32 = 100;

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
        scope: &Tenant,
        message: &Message,
    ) -> Result<Admitted<Self::Guard>, AdmitError> {
        if !self.guarded {
            return Ok(Ok(tx.admit_unguarded(&self.consumer, scope, message)));
        }
        self.within("admit a message", tx.admit(&self.consumer, scope, message)).await.map(admitted)
    }

    /// Gathers even without the guard: a handler does not expect a fragment.
    async fn gather(
        &self,
        tx: &mut Self::Tx,
        scope: &Tenant,
        message: &Message,
    ) -> Result<Gathered, AdmitError> {
        self.within("put a message together", tx.gather(&self.consumer, scope, message)).await
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
        self.within("look for what holds a key", call).await
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

    async fn take_in_hand(&self, messages: &[(&Tenant, MessageId)]) -> Result<Vec<InHand>, StoreError> {
        let (what, keys) = ("note what is in hand", self.keys(messages));
        let call = async {
            let mut connection = self.inbox.acquire(what).await?;
            let taken = DB::take_in_hand(&mut connection, self.inbox.statements(), &keys, self.process)
                .await
                .map_err(StoreError::during(what))?;
            if taken.iter().any(|in_hand| in_hand.failures > 0) {
                // Their next attempts are due by the clock of now, not by the one of the last
                // reading.
                self.inbox.refresh_on(&mut connection).await?;
            }
            Ok(taken)
        };
        self.within(what, call).await
    }

    async fn is_being_handled(&self, scope: &Tenant, id: MessageId) -> Result<bool, StoreError> {
        let call = self.inbox.is_being_handled(&self.consumer, scope, id);
        self.within("look whether a message is being handled", call).await
    }

    async fn take_over(&self, scope: &Tenant, id: MessageId, owner: Uuid) -> Result<(), StoreError> {
        let what = "take a message over";
        let call = async {
            let mut connection = self.inbox.acquire(what).await?;
            let key = key(&self.consumer, scope, id);
            DB::take_over(&mut connection, self.inbox.statements(), key, owner, self.process)
                .await
                .map_err(StoreError::during(what))
        };
        self.within(what, call).await
    }

    async fn put_down(&self, messages: &[(&Tenant, MessageId)]) -> Result<(), StoreError> {
        let (what, keys) = ("note that messages are no longer in hand", self.keys(messages));
        let call = async {
            let mut connection = self.inbox.acquire(what).await?;
            DB::put_down(&mut connection, self.inbox.statements(), &keys, self.process)
                .await
                .map_err(StoreError::during(what))
        };
        self.within(what, call).await
    }

    async fn forget_attempts(
        &self,
        tx: &mut Self::Tx,
        messages: &[(&Tenant, MessageId)],
        forget: Forget,
    ) -> Result<(), StoreError> {
        let (what, keys) = ("forget the attempts of a message that succeeded", self.keys(messages));
        let call = async {
            // In a transaction that has ended, the failures would be forgotten without the effect.
            tx.check_rows().await?;
            let statements = self.inbox.statements();
            DB::forget_attempts(tx, statements, &keys, forget).await.map_err(StoreError::during(what))
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
        scope: &Tenant,
        id: MessageId,
        failed: Failed<'_>,
    ) -> Result<Failures, StoreError> {
        self.within("note a failure", self.inbox.note_failure(&self.consumer, scope, id, failed)).await
    }

    async fn attempt(&self, scope: &Tenant, id: MessageId) -> Result<Option<Attempt>, StoreError> {
        self.within("look up how often a message failed", self.inbox.attempt(&self.consumer, scope, id)).await
    }

    async fn dead_letter(
        &self,
        scope: &Tenant,
        delivery: &Delivery,
        cause: (Reason, String, u32),
    ) -> Result<Committed, StoreError> {
        self.within("dead-letter", self.inbox.dead_letter(&self.consumer, scope, delivery, cause)).await
    }

    async fn dead_letter_whole(
        &self,
        scope: &Tenant,
        delivery: &Delivery,
        whole: &Message,
        cause: (Reason, String, u32),
    ) -> Result<Committed, StoreError> {
        let call = self.inbox.dead_letter_whole(&self.consumer, scope, delivery, whole, cause);
        self.within("dead-letter", call).await
    }

    async fn redrive_requested(&self, mut after: i64, ends_at: Instant) -> Result<Option<i64>, StoreError> {
        let mut failures = 0;
        loop {
            let look = self.inbox.redrive_requests(&self.consumer, after, REDRIVES);
            let requests = self.within("look for redrives that were requested", look).await?;
            for request in &requests {
                if Instant::now() >= ends_at {
                    return Ok(Some(after));
                }
                match self.carry_out(request).await {
                    Ok(()) => failures = 0,
                    // A single failure does not block the requests behind it, and neither do those
                    // that say nothing about the database.
                    Err(error) if !error.is_transient() || failures < REDRIVES_FAILED_MAX => {
                        failures += u32::from(error.is_transient());
                        let (dead_letter, error) = (request.dead_letter, error_text(&error));
                        tracing::warn!(%dead_letter, error, "a redrive that was requested waits");
                    }
                    Err(error) => return Err(error),
                }
                // Also moves past requests that wait for another process.
                after = request.number;
            }
            if requests.len() < REDRIVES as usize {
                return Ok(None);
            }
        }
    }

    async fn add_counts(&self, counts: Counts) -> Result<(), StoreError> {
        self.within("store what was counted", self.inbox.add_counts(&self.consumer, counts)).await
    }

    async fn maintain(&self) -> Result<(), OpenError> {
        let inbox = self.inbox.clone();
        // An aborted caller must not interrupt a transaction.
        let work = async move { within(MAINTENANCE_MAX, "maintain the inbox", inbox.maintain()).await };
        let maintained = shield(work).await?;
        tracing::debug!(?maintained, "inbox maintained");
        Ok(())
    }
}
