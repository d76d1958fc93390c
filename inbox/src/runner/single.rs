//! One delivery, to its end.

use std::error::Error;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use message::{Committed, Delivery, Message};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::crash::CrashPoint;
use super::store::Store;
use super::worker::{GivenUp, Grave, Worker, closed, is_innocent};
use crate::attempts::error_text;
use crate::chunks::Gathered;
use crate::dead_letter::Reason;
use crate::error::AdmitError;
use crate::guard::Duplicate;
use crate::handler::{HandlerError, Next};
use crate::name::Scope;
use crate::store_error::StoreError;

/// What one attempt came to.
enum Step {
    /// Its effect is committed, now or before.
    Settle(Committed),
    /// It is to be dead-lettered.
    Bury(Grave),
    /// It failed and was counted.
    Wait(Duration),
    /// Something is away, or lost a conflict; not counted.
    Outage(Box<dyn Error + Send + Sync>),
}

impl<S: Store> Worker<S> {
    /// Works on a delivery until it can be settled, or until it is to give up while waiting.
    pub(super) async fn run_one(
        &self,
        delivery: &Delivery,
        give_up: &CancellationToken,
    ) -> Result<Committed, GivenUp> {
        let message = match &delivery.message {
            Ok(message) => message,
            Err(malformed) => {
                self.meter.refused(Reason::Malformed);
                let grave = Grave::new(Reason::Malformed, malformed.problem.clone(), 0);
                return self.bury(delivery, &Scope::none(), grave, give_up).await;
            }
        };
        let span = tracing::info_span!("process", consumer = %self.consumer, message_id = %message.id,
            topic = %message.topic, origin = delivery.origin, trace_id = tracing::field::Empty);
        if let Some(trace) = &message.trace {
            span.record("trace_id", trace.trace_id());
        }
        self.run_message(delivery, message, give_up).instrument(span).await
    }

    async fn run_message(
        &self,
        delivery: &Delivery,
        message: &Message,
        give_up: &CancellationToken,
    ) -> Result<Committed, GivenUp> {
        let scope = (self.scope_of)(message);
        let (mut outages, mut failed_before) = (0, false);
        if delivery.redelivered {
            match self.resume(&scope, message, give_up).await? {
                Ok(proof) => return Ok(proof),
                Err(failed) => failed_before = failed,
            }
        }
        loop {
            match self.attempt(&scope, message, failed_before).await {
                Step::Settle(proof) => return Ok(proof),
                Step::Bury(grave) => return self.bury(delivery, &scope, grave, give_up).await,
                Step::Wait(delay) => {
                    (outages, failed_before) = (0, true);
                    self.wait(delay, give_up).await?;
                }
                Step::Outage(error) => self.wait_out(&mut outages, &*error, give_up).await?,
            }
        }
    }

    /// Takes up where another process left a redelivered message: settles one that is dead already, and keeps to
    /// the backoff of one that failed. Otherwise says whether it failed before.
    async fn resume(
        &self,
        scope: &Scope,
        message: &Message,
        give_up: &CancellationToken,
    ) -> Result<Result<Committed, bool>, GivenUp> {
        let mut outages = 0;
        loop {
            let looked_up = async {
                let buried = self.store.buried(scope, message).await?;
                let attempt = self.store.attempt(scope, message.id).await?;
                Ok::<_, StoreError>((buried, attempt))
            };
            match looked_up.await {
                Ok((Some(proof), _)) => {
                    tracing::info!("dead-lettered before");
                    return Ok(Ok(proof));
                }
                Ok((None, None)) => return Ok(Err(false)),
                Ok((None, Some(attempt))) => {
                    let left = Duration::try_from(attempt.next_at - self.store.now()).unwrap_or_default();
                    self.wait(left.min(self.backoff.max), give_up).await?;
                    return Ok(Err(true));
                }
                Err(error) => self.wait_out(&mut outages, &error, give_up).await?,
            }
        }
    }

    async fn attempt(&self, scope: &Scope, message: &Message, failed_before: bool) -> Step {
        let _permit = match self.permits.acquire().await.map_err(closed) {
            Ok(permit) => permit,
            Err(error) => return Step::Outage(error.into()),
        };
        let begun_at = Instant::now();
        let tx = match self.store.begin().await {
            Ok(tx) => tx,
            Err(error) => return Step::Outage(error.into()),
        };
        if message.chunk.is_some() {
            self.gather(tx, scope, message, failed_before, begun_at).await
        } else {
            self.apply_one(tx, scope, message, failed_before, begun_at).await
        }
    }

    /// Keeps a chunk; the last missing one goes on as the whole message.
    async fn gather(
        &self,
        mut tx: S::Tx,
        scope: &Scope,
        chunk: &Message,
        failed_before: bool,
        begun_at: Instant,
    ) -> Step {
        match self.store.gather(&mut tx, scope, chunk).await {
            Ok(Gathered::Whole(whole)) => {
                match self.apply_one(tx, scope, &whole, failed_before, begun_at).await {
                    Step::Bury(grave) => Step::Bury(grave.of_whole(Box::new(whole))),
                    step => step,
                }
            }
            Ok(Gathered::Kept { held, count }) => {
                let step = self.commit(tx, scope, chunk).await;
                if let Step::Settle(_) = &step {
                    self.meter.chunk();
                    tracing::info!(held, count, "chunk kept");
                    self.crash(CrashPoint::AfterCommit, chunk.id);
                }
                step
            }
            Ok(Gathered::Duplicate(duplicate)) => self.suppress(tx, scope, chunk, &duplicate).await,
            Err(error @ AdmitError::Damaged { .. }) => {
                self.meter.refused(Reason::Malformed);
                let grave = Grave::new(Reason::Malformed, error.to_string(), 0);
                let AdmitError::Damaged { whole, .. } = error else { return Step::Bury(grave) };
                Step::Bury(grave.of_whole(whole))
            }
            Err(error) => self.refuse(error),
        }
    }

    /// Applies a whole message in an open transaction.
    async fn apply_one(
        &self,
        mut tx: S::Tx,
        scope: &Scope,
        message: &Message,
        failed_before: bool,
        begun_at: Instant,
    ) -> Step {
        let guard = match self.store.admit(&mut tx, scope, message).await {
            Ok(Ok(guard)) => guard,
            Ok(Err(duplicate)) => return self.suppress(tx, scope, message, &duplicate).await,
            Err(error) => return self.refuse(error),
        };
        let result = match self.handle(&mut tx, message).await {
            Ok(result) => result,
            Err(error) => return self.failed(tx, scope, message, error).await,
        };
        if failed_before && let Err(error) = self.store.forget_attempts(&mut tx, scope, message.id).await {
            return Step::Outage(error.into());
        }
        if let Some(result) = result
            && let Err(error) = self.store.complete(&mut tx, guard, &result).await
        {
            return self.failed_to_store(tx, scope, message, error).await;
        }
        self.crash(CrashPoint::AfterEffect, message.id);
        let step = self.commit(tx, scope, message).await;
        if let Step::Settle(_) = &step {
            self.meter.applied(1, begun_at.elapsed());
            tracing::info!("applied");
            self.crash(CrashPoint::AfterCommit, message.id);
        }
        step
    }

    /// Settles what took effect before.
    async fn suppress(&self, tx: S::Tx, scope: &Scope, message: &Message, duplicate: &Duplicate) -> Step {
        tracing::info!(processed_at = %duplicate.processed_at, "duplicate suppressed");
        self.meter.duplicates(1);
        self.commit(tx, scope, message).await
    }

    /// What follows when a message is not admitted.
    fn refuse(&self, error: AdmitError) -> Step {
        let AdmitError::Refused(refusal) = error else { return Step::Outage(error.into()) };
        Step::Bury(Grave::new(Reason::from(&refusal), refusal.to_string(), 0))
    }

    /// Runs the handler; a panic is a failure like any other.
    pub(super) async fn handle(
        &self,
        tx: &mut S::Tx,
        message: &Message,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        match AssertUnwindSafe(self.store.handle(tx, message)).catch_unwind().await {
            Ok(result) => result,
            Err(_) => Err(HandlerError::retry("the handler panicked")),
        }
    }

    async fn commit(&self, tx: S::Tx, scope: &Scope, message: &Message) -> Step {
        match self.store.commit(tx).await {
            Ok(proofs) => match proofs.into_iter().next() {
                Some(proof) => Step::Settle(proof),
                None => Step::Outage("the commit proved nothing".into()),
            },
            Err(error) if is_innocent(&error) => Step::Outage(error.into()),
            Err(error) => self.count(scope, message, &error).await,
        }
    }

    async fn failed(&self, tx: S::Tx, scope: &Scope, message: &Message, error: HandlerError) -> Step {
        if let Err(rollback) = self.store.rollback(tx).await {
            tracing::warn!(error = error_text(&error), "the handler failed");
            return Step::Outage(rollback.into());
        }
        match error.next() {
            Next::Unavailable => Step::Outage(error.into()),
            Next::Reject => {
                self.meter.failed();
                Step::Bury(Grave::new(Reason::Rejected, error_text(&error), 1))
            }
            Next::Retry => self.count(scope, message, &error).await,
        }
    }

    async fn failed_to_store(&self, tx: S::Tx, scope: &Scope, message: &Message, error: StoreError) -> Step {
        if error.is_transient() {
            return Step::Outage(error.into());
        }
        // The handler broke its transaction: its own failure.
        let error = HandlerError::retry("the handler left a broken transaction").with_source(error);
        self.failed(tx, scope, message, error).await
    }

    /// Counts a failure and decides between trying again and giving up.
    async fn count(
        &self,
        scope: &Scope,
        message: &Message,
        error: &(dyn Error + Send + Sync + 'static),
    ) -> Step {
        self.meter.failed();
        let text = error_text(error);
        match self.store.record_failure(scope, message.id, &text, self.backoff).await {
            Ok((attempts, _)) if attempts >= self.attempts_max => {
                Step::Bury(Grave::new(Reason::Poison, text, attempts))
            }
            Ok((attempts, delay)) => {
                let attempts_max = self.attempts_max;
                tracing::warn!(attempts, attempts_max, ?delay, error = text, "failed; trying again");
                Step::Wait(delay)
            }
            Err(error) => Step::Outage(error.into()),
        }
    }
}
