//! Applies one message in a transaction, and commits it.

use std::time::Duration;

use message::Message;
use tokio::time::Instant;

use super::bounded::INTERRUPT_MAX;
use super::crash::CrashPoint;
use super::failure::{FailureKind, is_of_session};
use super::handling::of_staged;
use super::step::{Done, FailedAttempt, NewDeadLetter, Step};
use super::store::Store;
use super::worker::Worker;
use crate::attempts::Forget;
use crate::comparison::Duplicate;
use crate::dead_letters::{Reason, held_behind};
use crate::error::AdmitError;
use crate::error_text::error_text;
use crate::handler::{HandlerError, Next};
use crate::ids::{DeadLetterId, MessageName, Tenant};
use crate::refusal::Refusal;
use crate::store_error::StoreError;

/// Maximum distance into the future of a message that waits for its time. The database's clock will
/// reach that time, or will be corrected.
const FUTURE_NEAR: Duration = Duration::from_secs(86_400);

/// One attempt at a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct OneAttempt<'a> {
    pub(super) tenant: &'a Tenant,
    pub(super) message: &'a Message,
    /// Number of counted failures; `None` if this process has not recorded that it has the message
    /// in hand.
    pub(super) failed_before: Option<u32>,
    pub(super) begun_at: Instant,
}

impl<'a> OneAttempt<'a> {
    pub(super) fn name(self) -> MessageName<'a> {
        MessageName { tenant: self.tenant, id: self.message.id }
    }
}

/// Returns whether a refused message waits until the database's clock accepts it.
pub(super) fn waits_for_its_time(refusal: &Refusal) -> bool {
    let Refusal::FromTheFuture { generated_at, newest_accepted_at, .. } = refusal else { return false };
    *generated_at - *newest_accepted_at < FUTURE_NEAR
}

/// Returns which records of a message are deleted after a copy of it. A held dead letter continues
/// the count of failures.
pub(super) fn forget_of(copy: &Duplicate) -> Forget {
    if copy.dead_letter.is_some() { Forget::Unnoted } else { Forget::All }
}

impl<S: Store> Worker<S> {
    /// Applies a whole message in an open transaction.
    pub(super) async fn apply_one(&self, mut tx: S::Tx, attempt: OneAttempt<'_>) -> Step {
        let OneAttempt { tenant, message, failed_before, begun_at } = attempt;
        let guard = match self.store.admit(&mut tx, tenant, message).await {
            Ok(Ok(guard)) => guard,
            Ok(Err(duplicate)) => return self.suppress(tx, attempt, &duplicate).await,
            Err(error) => return self.refuse(tx, error).await,
        };
        match self.holder(&mut tx, tenant, message).await {
            Ok(None) => {}
            Ok(Some(holder)) => return self.hold(tx, holder).await,
            Err(error) => return Step::failed(FailureKind::Database, error),
        }
        let received = self.received(tenant, message, failed_before.unwrap_or(0));
        let result = match self.handle(&mut tx, &guard, message, &received).await {
            Ok(result) => result,
            Err(error) => return self.failed(tx, error).await,
        };
        if let Err(error) = self.forget(&mut tx, attempt, Forget::All).await {
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

    /// Deletes the attempts of a message that this process has in hand according to the database.
    pub(super) async fn forget(
        &self,
        tx: &mut S::Tx,
        attempt: OneAttempt<'_>,
        forget: Forget,
    ) -> Result<(), StoreError> {
        if attempt.failed_before.is_none() {
            return Ok(());
        }
        self.store.forget_attempts(tx, &[attempt.name()], forget).await
    }

    /// Turns a message whose key is held into a held dead letter. Rolls back its inbox row first,
    /// because the dead letter inserts its own.
    async fn hold(&self, tx: S::Tx, holder: DeadLetterId) -> Step {
        match self.store.rollback(tx).await {
            Ok(()) => Step::DeadLetter(NewDeadLetter::new(Reason::Held, held_behind(holder), 0)),
            Err(error) => Step::failed(FailureKind::Database, error),
        }
    }

    /// Settles a message that had already taken effect or become a dead letter.
    pub(super) async fn suppress(
        &self,
        mut tx: S::Tx,
        attempt: OneAttempt<'_>,
        duplicate: &Duplicate,
    ) -> Step {
        if let Err(error) = self.forget(&mut tx, attempt, forget_of(duplicate)).await {
            return Step::failed(FailureKind::Database, error);
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
    pub(super) async fn refuse(&self, tx: S::Tx, error: AdmitError) -> Step {
        let refusal = match error {
            AdmitError::Refused(refusal) => refusal,
            error if is_of_session(&error) => {
                return match self.store.discard(tx).await {
                    Ok(()) => Step::failed(FailureKind::Database, error),
                    Err(undiscarded) => Step::failed(FailureKind::Database, undiscarded),
                };
            }
            error => return Step::failed(FailureKind::Database, error),
        };
        if waits_for_its_time(&refusal) {
            return Step::failed(FailureKind::Database, refusal);
        }
        Step::DeadLetter(NewDeadLetter::new(Reason::from(&refusal), refusal.to_string(), 0))
    }

    pub(super) async fn commit(&self, tx: S::Tx) -> Step {
        match self.store.commit(tx).await {
            Ok(proofs) => match proofs.into_iter().next() {
                Some(proof) => Step::Settle(Done::now(proof)),
                None => Step::failed(FailureKind::Database, "the commit returned no proof"),
            },
            Err(error) => match of_staged(error) {
                Ok(error) => self.after_failure(error),
                Err(error) if error.is_innocent() => Step::failed(FailureKind::Database, error),
                Err(error) => Step::failed(FailureKind::Own, error),
            },
        }
    }

    /// Rolls back the transaction of a handler that failed.
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
                return Step::failed(FailureKind::Database, rollback);
            }
            // The rollback continues in a separate task.
            Err(_) => tracing::warn!("the rollback of a failed handler's transaction is slow"),
        }
        self.after_failure(error)
    }

    /// Returns the step after a handler that failed and was rolled back.
    fn after_failure(&self, error: HandlerError) -> Step {
        let (kind, delay) = match error.next() {
            Next::NotYet => (FailureKind::Unavailable, error.delay()),
            Next::Unavailable => (FailureKind::Unavailable, None),
            Next::Database => (FailureKind::Database, None),
            Next::Retry => (FailureKind::Own, error.delay()),
            Next::Reject => {
                self.meter.failed();
                return Step::DeadLetter(NewDeadLetter::new(Reason::Rejected, error_text(&error), 1));
            }
        };
        Step::Failed(FailedAttempt::new(kind, error).after(delay))
    }

    async fn failed_to_store(&self, tx: S::Tx, error: StoreError) -> Step {
        if error.is_transient() {
            return Step::failed(FailureKind::Database, error);
        }
        // The handler broke its transaction: its own failure.
        self.failed(tx, HandlerError::of_broken_transaction(error)).await
    }
}
