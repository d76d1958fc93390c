//! Handles one delivery to its end.

use std::error::Error;
use std::sync::atomic::Ordering;
use std::time::Duration;

use message::{Backoff, Committed, Delivery, Message, MessageId};
use tokio::sync::SemaphorePermit;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use uuid::Uuid;

use super::bounded::INTERRUPT_MAX;
use super::crash::CrashPoint;
use super::failure::{Failure, FailureKind, is_of_session};
use super::key_queues::Held;
use super::store::{BEGINS_WITHIN, Store};
use super::worker::{GivenUp, NewDeadLetter, Worker, closed, of_staged};
use crate::attempts::{Failed, Failures, Forget, InHand, Pause, error_text};
use crate::chunks::Gathered;
use crate::dead_letter::{DeadLetterId, Reason};
use crate::error::AdmitError;
use crate::guard::Duplicate;
use crate::handler::{HandlerError, Next, RETRY_AFTER_MAX};
use crate::held_keys::held_behind;
use crate::name::Tenant;
use crate::refusal::Refusal;
use crate::store_error::StoreError;

/// The outcome of one attempt.
enum Step {
    /// Its effect is committed, now or earlier.
    Settle(Done),
    /// It must be dead-lettered.
    Bury(NewDeadLetter),
    /// It failed. Contains the whole message if the delivery is the chunk that completed it.
    Failed(Failing, Cause, Option<Box<Message>>),
    /// The database could not even begin, so this message did not cause it.
    Away(Cause),
    /// It failed in another process, whose backoff ends after this time, or another process handles
    /// it.
    Later(Duration),
}

/// Maximum distance into the future of a message that waits for its time. The database's clock will
/// reach that time, or will be corrected.
const FUTURE_NEAR: Duration = Duration::from_secs(86_400);

/// Number of processes that may end with a message and others in hand. After that nothing runs
/// beside it, so that it affects no other message.
const ENDS_BESIDE_MAX: u32 = 2;

/// How often a process asks for a message that another process handles.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The end of a delivery that can be settled.
#[derive(Debug)]
pub(super) struct Done {
    /// The proof of the commit.
    pub(super) proof: Committed,
    /// Whether it was handled now: it is neither a duplicate nor a chunk that is only kept.
    pub(super) is_handled: bool,
}

impl Done {
    fn now(proof: Committed) -> Self {
        Self { proof, is_handled: true }
    }
}

impl Step {
    /// Marks a failure to keep a chunk, as distinct from a failure of the whole message.
    fn of_chunk(self) -> Self {
        match self {
            Self::Failed(_, error, whole) => Self::Failed((FailureKind::Chunk, None), error, whole),
            step => step,
        }
    }

    /// Marks the end of a delivery whose handler did not run.
    fn without_handler(self) -> Self {
        match self {
            Self::Settle(done) => Self::Settle(Done { is_handled: false, ..done }),
            step => step,
        }
    }
}

/// Returns whether a refused message waits until the database's clock accepts it.
pub(super) fn waits_for_its_time(refusal: &Refusal) -> bool {
    let Refusal::FromTheFuture { generated_at, newest_accepted_at, .. } = refusal else { return false };
    *generated_at - *newest_accepted_at < FUTURE_NEAR
}

/// Returns the maximum time between two attempts of a message. Waits that are noted beyond it come
/// from a clock that was ahead.
fn pause_max(backoff: Backoff) -> Duration {
    backoff.max.max(RETRY_AFTER_MAX)
}

/// Returns what is forgotten of a message after a copy of it. A held dead letter continues the
/// count of failures.
pub(super) fn forget_of(copy: &Duplicate) -> Forget {
    if copy.dead_letter.is_some() { Forget::Unnoted } else { Forget::All }
}

/// The party at fault, and the wait that the handler asked for.
pub(super) type Failing = (FailureKind, Option<Duration>);

type Cause = Box<dyn Error + Send + Sync>;

/// The history of a message's attempts in this process.
#[derive(Debug, Default)]
pub(super) struct Course {
    /// Whether another process may have had it in hand.
    is_suspect: bool,
    /// Whether the backoff set by another process is over.
    is_resumed: bool,
    /// Number of counted failures, if any failure is noted in the database.
    failed_before: Option<u32>,
    /// Number of consecutive uncounted failures.
    outages: u32,
    /// Number of messages that had taken effect when it last failed.
    applied_then: Option<u64>,
    /// A process that had noted it to be in hand, and had not begun to handle it.
    not_begun: Option<Uuid>,
}

impl Course {
    /// Returns whether an attempt in this process has failed.
    fn has_failed_here(&self) -> bool {
        self.applied_then.is_some()
    }
}

/// The consequence of a noted failure.
pub(super) enum Noted {
    /// It must be dead-lettered.
    Dead(NewDeadLetter),
    /// It was counted; contains the wait until the next attempt.
    Counted(Duration),
    /// It was not counted.
    Uncounted,
}

impl<S: Store> Worker<S> {
    /// Works on a delivery until it can be settled, or until it must give up while waiting.
    pub(super) async fn run_one(&self, held: &Held, give_up: &CancellationToken) -> Result<Done, GivenUp> {
        let delivery = &held.delivery;
        let message = match &delivery.message {
            Ok(message) => message,
            Err(malformed) => {
                self.meter.refused(Reason::Malformed);
                let grave = NewDeadLetter::new(Reason::Malformed, malformed.problem.clone(), 0);
                let stored = self.store_dead_letter(delivery, &Tenant::none(), grave, give_up).await;
                return stored.map(Done::now);
            }
        };
        let span = self.process_span(message, &delivery.origin);
        let course = Course { is_suspect: held.is_suspect, ..Course::default() };
        self.run_message(delivery, message, course, give_up).instrument(span).await
    }

    async fn run_message(
        &self,
        delivery: &Delivery,
        message: &Message,
        mut course: Course,
        give_up: &CancellationToken,
    ) -> Result<Done, GivenUp> {
        let tenant = match self.tenant(message) {
            Ok(tenant) => tenant,
            Err(problem) => {
                self.meter.refused(Reason::NoTenant);
                let grave = NewDeadLetter::new(Reason::NoTenant, problem, 0);
                let stored = self.store_dead_letter(delivery, &Tenant::none(), grave, give_up).await;
                return stored.map(Done::now);
            }
        };
        loop {
            match self.attempt(&tenant, message, &mut course).await {
                Step::Settle(done) => return Ok(done),
                Step::Bury(grave) => {
                    return self.store_dead_letter(delivery, &tenant, grave, give_up).await.map(Done::now);
                }
                Step::Failed(failing, error, whole) => {
                    if let Some(grave) =
                        self.note_failure(&tenant, message, &mut course, (failing, &*error), give_up).await?
                    {
                        let refused = error.downcast_ref::<Refusal>().map(Reason::from);
                        let reason = refused.unwrap_or(grave.reason);
                        let grave = NewDeadLetter { reason, whole, ..grave };
                        let stored = self.store_dead_letter(delivery, &tenant, grave, give_up).await;
                        return stored.map(Done::now);
                    }
                }
                Step::Away(error) => self.wait_out(&mut course.outages, &*error, give_up).await?,
                Step::Later(delay) => self.wait(delay, give_up).await?,
            }
        }
    }

    async fn attempt(&self, tenant: &Tenant, message: &Message, course: &mut Course) -> Step {
        let mut permit = match self.permits.acquire().await.map_err(closed) {
            Ok(permit) => Some(permit),
            Err(error) => return Step::Away(error.into()),
        };
        let mut failed_before = None;
        let mut given_up = None;
        if course.is_suspect || course.failed_before.is_some() {
            match self.take_in_hand(tenant, message, course, &mut permit).await {
                Ok(failures) => failed_before = Some(failures),
                // Only the whole message is given up, so its chunks are gathered first.
                Err(Step::Bury(grave)) if message.chunk.is_some() => {
                    failed_before = Some(grave.attempts);
                    given_up = Some(grave);
                }
                Err(step) => {
                    if matches!(step, Step::Bury(_)) {
                        self.meter.failed();
                    }
                    return step;
                }
            }
        }
        let begun_at = Instant::now();
        let tx = match self.store.begin().await {
            Ok(tx) => tx,
            Err(error) => {
                if failed_before.is_some() {
                    self.put_down_unhandled(&[(tenant, message.id)]).await;
                }
                return Step::Away(error.into());
            }
        };
        if message.chunk.is_none() {
            return self.apply_one(tx, tenant, message, failed_before, begun_at).await;
        }
        let (tx, whole) = match self.gather(tx, tenant, message, failed_before, course).await {
            Ok(gathered) => gathered,
            Err(step) => return step,
        };
        let step = match given_up {
            Some(grave) => self.give_up(tx, grave).await,
            None => self.apply_one(tx, tenant, &whole, failed_before, begun_at).await,
        };
        match step {
            Step::Bury(grave) => Step::Bury(grave.of_whole(Box::new(whole))),
            Step::Failed(kind, error, _) => Step::Failed(kind, error, Some(Box::new(whole))),
            step => step,
        }
    }

    /// Gives up a message whose chunks were gathered. Rolls back first, because storing the dead
    /// letter removes the chunks itself.
    async fn give_up(&self, tx: S::Tx, grave: NewDeadLetter) -> Step {
        match self.store.rollback(tx).await {
            Ok(()) => {
                self.meter.failed();
                Step::Bury(grave)
            }
            Err(error) => Step::Failed((FailureKind::Database, None), error.into(), None),
        }
    }

    /// Notes that this process has a message in hand, and respects the backoff of another process
    /// in which it failed. If another process handles it now, waits for that one without a permit.
    /// Returns the number of counted failures.
    async fn take_in_hand<'a>(
        &'a self,
        tenant: &Tenant,
        message: &Message,
        course: &mut Course,
        permit: &mut Option<SemaphorePermit<'a>>,
    ) -> Result<u32, Step> {
        let away = |error: StoreError| Step::Away(error.into());
        let this = [(tenant, message.id)];
        loop {
            let taken = self.store.take_in_hand(&this).await.map_err(away)?;
            let Some(in_hand) = taken.first().copied() else {
                return Err(Step::Away("the database did not note what is in hand".into()));
            };
            let InHand { failures, ends, owner, next_at } = in_hand;
            if let Some(owner) = owner {
                // A broker also redelivers messages that a live process works on: after a
                // rebalance, a lost session, or a visibility timeout.
                if self.store.is_being_handled(tenant, message.id).await.map_err(away)? {
                    self.ended_owners.remove(owner);
                    course.not_begun = None;
                    return Err(Step::Later(ASK_AGAIN));
                }
                let was_seen_before = course.not_begun.replace(owner) == Some(owner);
                if !self.ended_owners.has_ended(owner, was_seen_before) {
                    return Err(Step::Later(BEGINS_WITHIN));
                }
                self.store.take_over(tenant, message.id, owner).await.map_err(away)?;
                continue;
            }
            if let Some(error) = in_hand.given_up() {
                return Err(Step::Bury(NewDeadLetter::new(Reason::Poison, error, failures)));
            }
            let left = Duration::try_from(next_at - self.store.now()).unwrap_or_default();
            let must_wait = !std::mem::replace(&mut course.is_resumed, true) && !left.is_zero();
            let held = permit.as_ref().map_or(0, SemaphorePermit::num_permits);
            let is_alone = u32::try_from(held).unwrap_or(u32::MAX) >= self.permits_max;
            if !must_wait && (ends < ENDS_BESIDE_MAX || is_alone) {
                return Ok(failures);
            }
            // A waiting message is not in hand.
            self.store.put_down(&this).await.map_err(away)?;
            if must_wait {
                return Err(Step::Later(left.min(pause_max(self.backoff))));
            }
            drop(permit.take());
            let all = self.permits.acquire_many(self.permits_max).await.map_err(closed);
            *permit = Some(all.map_err(away)?);
        }
    }

    /// Notes that messages are no longer in hand. If that fails, it may look as if this process had
    /// ended with them in hand.
    pub(super) async fn put_down_unhandled(&self, messages: &[(&Tenant, MessageId)]) {
        if let Err(error) = self.store.put_down(messages).await {
            let error = error_text(&error);
            tracing::debug!(consumer = %self.consumer, error, "messages could not be noted as no longer in hand");
        }
    }

    /// Keeps a chunk. Returns the whole message if it was the last missing one, and otherwise the
    /// step that follows.
    async fn gather(
        &self,
        mut tx: S::Tx,
        tenant: &Tenant,
        chunk: &Message,
        failed_before: Option<u32>,
        course: &Course,
    ) -> Result<(S::Tx, Message), Step> {
        let step = match self.store.gather(&mut tx, tenant, chunk).await {
            Ok(Gathered::Whole(whole)) => return Ok((tx, whole)),
            Ok(Gathered::Kept { held, count }) => {
                // A set with a noted failure counts as being retried, and does not expire. All
                // chunks share one note: one that is only kept must not hide that the handler of
                // the whole failed or ended a process. Only a failure to keep this very chunk is
                // over.
                let chunks = [(tenant, chunk.id)];
                let forget = if course.has_failed_here() { Forget::Unsuspected } else { Forget::Untouched };
                if failed_before.is_some()
                    && let Err(error) = self.store.forget_attempts(&mut tx, &chunks, forget).await
                {
                    return Err(Step::Failed((FailureKind::Chunk, None), error.into(), None));
                }
                let step = self.commit(tx).await.of_chunk().without_handler();
                if let Step::Settle(_) = &step {
                    self.meter.chunk();
                    tracing::debug!(held, count, "chunk kept");
                    self.crash(CrashPoint::AfterCommit, chunk.id);
                }
                step
            }
            Ok(Gathered::Duplicate(duplicate)) => {
                self.suppress(tx, (tenant, chunk.id), failed_before, &duplicate).await
            }
            Err(error @ AdmitError::Damaged { .. }) => {
                self.meter.refused(Reason::Malformed);
                let grave = NewDeadLetter::new(Reason::Malformed, error.to_string(), 0);
                let AdmitError::Damaged { whole, .. } = error else { return Err(Step::Bury(grave)) };
                Step::Bury(grave.of_whole(whole))
            }
            Err(error) => self.refuse(tx, error).await.of_chunk(),
        };
        Err(step)
    }

    /// Applies a whole message in an open transaction.
    async fn apply_one(
        &self,
        mut tx: S::Tx,
        tenant: &Tenant,
        message: &Message,
        failed_before: Option<u32>,
        begun_at: Instant,
    ) -> Step {
        let guard = match self.store.admit(&mut tx, tenant, message).await {
            Ok(Ok(guard)) => guard,
            Ok(Err(duplicate)) => {
                return self.suppress(tx, (tenant, message.id), failed_before, &duplicate).await;
            }
            Err(error) => return self.refuse(tx, error).await,
        };
        match self.holder(&mut tx, tenant, message).await {
            Ok(None) => {}
            Ok(Some(holder)) => return self.hold(tx, holder).await,
            Err(error) => return Step::Failed((FailureKind::Database, None), error.into(), None),
        }
        let result = match self.handle(&mut tx, &guard, message, (tenant, failed_before.unwrap_or(0))).await {
            Ok(result) => result,
            Err(error) => return self.failed(tx, error).await,
        };
        if failed_before.is_some()
            && let Err(error) =
                self.store.forget_attempts(&mut tx, &[(tenant, message.id)], Forget::All).await
        {
            return self.failed_to_store(tx, error).await;
        }
        if let Some(result) = result
            && let Err(error) = self.store.complete(&mut tx, guard, &result).await
        {
            return self.failed_to_store(tx, error).await;
        }
        self.crash(CrashPoint::AfterEffect, message.id);
        let step = self.commit(tx).await;
        if let Step::Settle(_) = &step {
            self.succeeded(1, begun_at.elapsed());
            tracing::debug!("applied");
            self.crash(CrashPoint::AfterCommit, message.id);
        }
        step
    }

    /// Turns a message whose key is held into a held dead letter. Rolls back its inbox row first,
    /// because the dead letter inserts its own.
    async fn hold(&self, tx: S::Tx, holder: DeadLetterId) -> Step {
        match self.store.rollback(tx).await {
            Ok(()) => Step::Bury(NewDeadLetter::new(Reason::Held, held_behind(holder), 0)),
            Err(error) => Step::Failed((FailureKind::Database, None), error.into(), None),
        }
    }

    /// Settles a message that took effect before, or became a dead letter.
    async fn suppress(
        &self,
        mut tx: S::Tx,
        message: (&Tenant, MessageId),
        failed_before: Option<u32>,
        duplicate: &Duplicate,
    ) -> Step {
        if failed_before.is_some()
            && let Err(error) = self.store.forget_attempts(&mut tx, &[message], forget_of(duplicate)).await
        {
            return Step::Failed((FailureKind::Database, None), error.into(), None);
        }
        let Duplicate { processed_at, dead_letter, .. } = duplicate;
        let dead_letter = dead_letter.map(tracing::field::display);
        tracing::debug!(%processed_at, dead_letter, "duplicate suppressed");
        self.meter.duplicates(1);
        self.commit(tx).await.without_handler()
    }

    /// Returns the step for a message that was not admitted.
    ///
    /// A message from the near future waits. Its failures count only while others succeed: when all
    /// are refused, the database's clock is wrong.
    async fn refuse(&self, tx: S::Tx, error: AdmitError) -> Step {
        let AdmitError::Refused(refusal) = error else {
            if is_of_session(&error)
                && let Err(error) = self.store.discard(tx).await
            {
                return Step::Failed((FailureKind::Database, None), error.into(), None);
            }
            return Step::Failed((FailureKind::Database, None), error.into(), None);
        };
        if waits_for_its_time(&refusal) {
            return Step::Failed((FailureKind::Database, None), Box::new(refusal), None);
        }
        Step::Bury(NewDeadLetter::new(Reason::from(&refusal), refusal.to_string(), 0))
    }

    async fn commit(&self, tx: S::Tx) -> Step {
        match self.store.commit(tx).await {
            Ok(proofs) => match proofs.into_iter().next() {
                Some(proof) => Step::Settle(Done::now(proof)),
                None => Step::Failed((FailureKind::Database, None), "the commit proved nothing".into(), None),
            },
            Err(error) => match of_staged(error) {
                Ok(error) => self.after_failure(error),
                Err(error) if error.is_innocent() => {
                    Step::Failed((FailureKind::Database, None), error.into(), None)
                }
                Err(error) => Step::Failed((FailureKind::Own, None), error.into(), None),
            },
        }
    }

    async fn failed(&self, tx: S::Tx, error: HandlerError) -> Step {
        let rollback = async {
            if is_of_session(&error) { self.store.discard(tx).await } else { self.store.rollback(tx).await }
        };
        match tokio::time::timeout(INTERRUPT_MAX, rollback).await {
            Ok(Ok(())) => {}
            // For an interrupted statement, its own error arrives with the rollback.
            Ok(Err(_)) if error.is_timeout() => {}
            Ok(Err(rollback)) => {
                tracing::warn!(error = error_text(&error), "the handler failed");
                return Step::Failed((FailureKind::Database, None), rollback.into(), None);
            }
            // The rollback continues in a task of its own.
            Err(_) => tracing::warn!("the transaction of a failed handler is slow to roll back"),
        }
        self.after_failure(error)
    }

    /// Returns the step after a handler that failed and was rolled back.
    fn after_failure(&self, error: HandlerError) -> Step {
        match error.next() {
            Next::NotYet => Step::Failed((FailureKind::Unavailable, error.delay()), error.into(), None),
            Next::Unavailable => Step::Failed((FailureKind::Unavailable, None), error.into(), None),
            Next::Database => Step::Failed((FailureKind::Database, None), error.into(), None),
            Next::Retry => Step::Failed((FailureKind::Own, error.delay()), error.into(), None),
            Next::Reject => {
                self.meter.failed();
                Step::Bury(NewDeadLetter::new(Reason::Rejected, error_text(&error), 1))
            }
        }
    }

    async fn failed_to_store(&self, tx: S::Tx, error: StoreError) -> Step {
        if error.is_transient() {
            return Step::Failed((FailureKind::Database, None), error.into(), None);
        }
        // The handler broke its transaction: its own failure.
        self.failed(tx, HandlerError::of_broken_transaction(error)).await
    }

    /// Notes a failure, and waits for the next attempt unless the message must be given up.
    async fn note_failure(
        &self,
        tenant: &Tenant,
        message: &Message,
        course: &mut Course,
        (failing, error): (Failing, &(dyn Error + Send + Sync + 'static)),
        give_up: &CancellationToken,
    ) -> Result<Option<NewDeadLetter>, GivenUp> {
        let noted = self.count_failure((tenant, message.id), course, (failing, error)).await;
        match (noted, failing.1) {
            (Ok(Noted::Dead(grave)), _) => return Ok(Some(grave)),
            (Ok(Noted::Counted(delay)), _) => self.wait(delay, give_up).await?,
            (Ok(Noted::Uncounted), Some(every)) => {
                tracing::info!(error = error_text(error), ?every, "not yet; trying again");
                self.wait(every, give_up).await?;
            }
            (Ok(Noted::Uncounted), None) => self.wait_out(&mut course.outages, error, give_up).await?,
            (Err(unnoted), _) => {
                tracing::warn!(error = error_text(&unnoted), "a failure was not noted");
                self.wait_out(&mut course.outages, error, give_up).await?;
            }
        }
        Ok(None)
    }

    /// Notes a failure, and counts it if it is the message's own.
    pub(super) async fn count_failure(
        &self,
        (tenant, id): (&Tenant, MessageId),
        course: &mut Course,
        ((kind, chosen), error): (Failing, &(dyn Error + Send + Sync + 'static)),
    ) -> Result<Noted, StoreError> {
        let applied = self.applied.load(Ordering::Relaxed);
        let is_returned = kind.is_of_handler();
        let kind = if is_of_session(error) { FailureKind::Unavailable } else { kind };
        let others_succeeded = course.applied_then.replace(applied).is_some_and(|then| applied > then);
        let is_counted = kind.is_counted(others_succeeded);
        let text = error_text(error);
        let pause = chosen.map_or(Pause::Backoff(self.backoff), Pause::Exactly);
        let pause = is_counted.then_some(pause);
        let failed = Failed { error: &text, pause, is_returned };
        let noted = self.store.record_failure(tenant, id, failed).await?;
        let Failures { attempts, uncounted, age, delay } = noted;
        course.failed_before = Some(attempts);
        if self.limits.are_exceeded_by(Failure { is_counted, attempts, age, uncounted }) {
            self.meter.failed();
            return Ok(Noted::Dead(NewDeadLetter::new(Reason::Poison, text, attempts)));
        }
        if !is_counted {
            return Ok(Noted::Uncounted);
        }
        self.meter.failed();
        course.outages = 0;
        let attempts_max = self.limits.attempts_max;
        tracing::warn!(attempts, attempts_max, ?delay, error = text, "failed; trying again");
        Ok(Noted::Counted(delay))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_failure_to_keep_a_chunk_counts_while_other_messages_succeed() {
        for kind in [FailureKind::Own, FailureKind::Database] {
            let step = Step::Failed((kind, None), "the disk is full".into(), None).of_chunk();
            let Step::Failed((kind, delay), error, None) = step else { panic!("still a failure") };
            assert!(!kind.is_counted(true) && !kind.is_counted(false) && delay.is_none());
            assert_eq!(error.to_string(), "the disk is full");
        }
        let refused = Step::Bury(NewDeadLetter::new(Reason::TooOld, String::from("old"), 0));
        assert!(matches!(refused.of_chunk(), Step::Bury(_)), "a refusal stays one");
    }
}
