//! The runner's view of a database: the operations on it, for one consumer.
//!
//! The runner decides when to try again, what to dead-letter and what to settle. All uses of a
//! transaction are behind [`Store`]. [`InboxStore`](super::inbox_store::InboxStore) is the real
//! store. A simulation brings its own, to fail at every step.

use std::collections::HashSet;
use std::future::Future;

use message::{Committed, Delivery, Message, MessageId};
use time::OffsetDateTime;
use tokio::time::Instant;
use uuid::Uuid;

use crate::activity::Counts;
use crate::attempts::{Attempt, Failed, Failures, Forget, InHand};
use crate::batch::Candidate;
use crate::chunks::Gathered;
use crate::comparison::Duplicate;
use crate::dead_letters::{Cause, HeldFirst, HeldKey, Turn};
use crate::error::{AdmitError, CommitError, OpenError};
use crate::handler::{HandlerError, Received};
use crate::ids::{DeadLetterId, MessageName, Tenant};
use crate::refusal::Refusal;
use crate::store_error::StoreError;

/// The admission of a message that was not refused: the right to apply it, or a duplicate.
pub type Admitted<G> = Result<G, Duplicate>;

/// The admission of each message of a batch, or its refusal.
pub type AdmittedBatch<G> = Vec<Result<Admitted<G>, Refusal>>;

/// The operations of the runner on held messages. By default a store holds no messages.
pub trait HeldMessages: Send + Sync + 'static {
    /// Returns the first held message of each of the next keys after `after`, in the order of the
    /// keys.
    fn held_firsts(
        &self,
        _after: Option<&HeldKey>,
        _limit: u32,
    ) -> impl Future<Output = Result<Vec<HeldFirst>, StoreError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// Returns the keys that had a dead letter closed since a moment of the database's clock;
    /// `None` when `limit` or more dead letters were closed.
    fn keys_closed_since(
        &self,
        _since: OffsetDateTime,
        _limit: u32,
    ) -> impl Future<Output = Result<Option<HashSet<HeldKey>>, StoreError>> + Send {
        std::future::ready(Ok(Some(HashSet::new())))
    }

    /// Returns the first open dead letter that holds each of these keys, in their order.
    fn firsts_of(
        &self,
        keys: &[HeldKey],
    ) -> impl Future<Output = Result<Vec<Option<DeadLetterId>>, StoreError>> + Send {
        std::future::ready(Ok(vec![None; keys.len()]))
    }

    /// Redrives a held message if it is due. After an error, nothing was begun. A message that was
    /// begun and not applied has [failed](Turn::Failed), whatever the reason.
    fn redrive_in_turn(
        &self,
        _letter: DeadLetterId,
    ) -> impl Future<Output = Result<Turn, StoreError>> + Send {
        std::future::ready(Ok(Turn::NotNow))
    }

    /// Turns a held message into an ordinary dead letter. Returns whether it was still held.
    fn fail_held(
        &self,
        _letter: DeadLetterId,
        _message: MessageName<'_>,
        _cause: Cause,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        std::future::ready(Ok(false))
    }
}

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
        tenant: &Tenant,
        message: &Message,
    ) -> impl Future<Output = Result<Admitted<Self::Guard>, AdmitError>> + Send;

    /// Gathers the chunks of a message; called for chunks only. A store that keeps no chunks
    /// refuses them.
    fn gather(
        &self,
        _tx: &mut Self::Tx,
        _tenant: &Tenant,
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

    /// Records that this process has messages in hand, before their handlers run: if a handler ends
    /// the process, the next process finds the note. Messages recorded by another process stay its
    /// own until they are [taken over](Self::take_over). Returns results in the order of
    /// `messages`. By default a store keeps no such notes and returns failures only.
    fn take_in_hand(
        &self,
        messages: &[MessageName<'_>],
    ) -> impl Future<Output = Result<Vec<InHand>, StoreError>> + Send {
        async move {
            let mut taken = Vec::with_capacity(messages.len());
            for message in messages {
                let attempt = self.attempt(message.tenant, message.id).await?;
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
        _tenant: &Tenant,
        _id: MessageId,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        std::future::ready(Ok(false))
    }

    /// Counts the end of a message's owner, and records that this process has it in hand. Does
    /// nothing when a third process did so before.
    fn take_over(
        &self,
        _tenant: &Tenant,
        _id: MessageId,
        _owner: Uuid,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Removes the notes of [`take_in_hand`](Self::take_in_hand) for messages that were not
    /// handled.
    fn put_down(&self, _messages: &[MessageName<'_>]) -> impl Future<Output = Result<(), StoreError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Forgets the attempts of those of these messages that `forget` names, in this transaction.
    /// The attempts of a message that is not applied here stay: a copy or a chunk shows nothing
    /// about its handler.
    fn forget_attempts(
        &self,
        tx: &mut Self::Tx,
        messages: &[MessageName<'_>],
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

    /// Records a failure; counts it if it has a pause.
    fn record_failure(
        &self,
        tenant: &Tenant,
        id: MessageId,
        failed: Failed<'_>,
    ) -> impl Future<Output = Result<Failures, StoreError>> + Send;

    /// Returns the failures of a message so far.
    fn attempt(
        &self,
        tenant: &Tenant,
        id: MessageId,
    ) -> impl Future<Output = Result<Option<Attempt>, StoreError>> + Send;

    /// Dead-letters a delivery. Returns the proof that settles it.
    fn dead_letter(
        &self,
        tenant: &Tenant,
        delivery: &Delivery,
        cause: Cause,
    ) -> impl Future<Output = Result<Committed, StoreError>> + Send;

    /// Dead-letters the whole message that the chunk of a delivery completed, and forgets its
    /// chunks.
    fn dead_letter_whole(
        &self,
        tenant: &Tenant,
        delivery: &Delivery,
        _whole: &Message,
        cause: Cause,
    ) -> impl Future<Output = Result<Committed, StoreError>> + Send {
        self.dead_letter(tenant, delivery, cause)
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

    /// Lets no further redrive begin. Running ones continue. By default a store has none.
    fn begin_no_redrives(&self) {}

    /// Abandons running redrives, so that they count against no message, and begins no others. By
    /// default a store has none.
    fn stop_redrives(&self) {}

    /// Stores counts; by default a store drops them.
    fn add_counts(&self, _counts: Counts) -> impl Future<Output = Result<(), StoreError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Creates the next days and removes expired ones. Runs to its end even if it is dropped.
    fn maintain(&self) -> impl Future<Output = Result<(), OpenError>> + Send;
}
