//! Runs one saga, from the claim to its next pause.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use message::Backoff;
use tokio_util::sync::CancellationToken;

use super::finishing;
use super::renewal::InHand;
use crate::dialect::Dialect;
use crate::error::{StoreError, chain, storable};
use crate::lease::Lease;
use crate::options::SPAN_MAX;
use crate::record::{Held, LOST, SagaRecord, State, StepRecord, Turn, UndoState};
use crate::registry::Ended;
use crate::run::{Halt, Read, Run};
use crate::sagas::{Inner, Sagas};
use crate::{crash_points, telemetry};

/// Consecutive conflicts that count as one failure: a lock that is never released must not go
/// unnoticed.
const CONFLICTS_MAX: u32 = 20;
/// The pauses between them.
const CONFLICTS: Backoff = Backoff { first: Duration::from_millis(10), max: Duration::from_millis(250) };

/// Consecutive failures that look like an outage and are not counted, although the database
/// answered after each of them. The next one counts against the step: it uses another database that
/// is unavailable, or requires more than this one can do.
const UNCOUNTED_MAX: u32 = 5;

/// Minimum failures before the end of a worker makes a saga stuck, whatever the limit of attempts:
/// most workers are killed for other reasons.
const WORKERS_MIN: u32 = 10;

/// How often releasing a saga is retried while its worker stops and the database does not answer.
const OUTAGES_AT_STOP: u32 = 3;

/// The next step after a run.
#[derive(Debug)]
enum Next {
    /// The saga is released, or belongs to another worker.
    Leave,
    /// The saga is read again, and run again.
    Again,
    /// The same, after the database did not answer.
    AfterOutage,
}

struct Driver<DB: Dialect> {
    sagas: Arc<Inner<DB>>,
    stopping: CancellationToken,
    lease: Lease,
    held: Held,
    /// Failures since the last progress.
    attempts: u32,
    conflicts: u32,
    /// Consecutive failures that were not counted, although the database answered after each of
    /// them.
    uncounted: u32,
    /// Whether the saga has not run yet, so that it has no steps.
    is_fresh: bool,
    /// The step at which the last run ended.
    step: Option<String>,
}

/// Runs a saga that was claimed.
pub(super) async fn drive<DB: Dialect>(
    sagas: Arc<Inner<DB>>,
    in_hand: Arc<InHand>,
    stopping: CancellationToken,
    saga: SagaRecord,
    lease: Lease,
) {
    if sagas.vanishes_at(&saga.outline.id, crash_points::AFTER_CLAIM).await {
        return;
    }
    let held = Held::of(&saga);
    let _renewed = in_hand.add(held.clone(), lease.clone());
    let (attempts, is_fresh) =
        (saga.outline.attempts, saga.outline.epoch == 1 && saga.outline.state == State::Running);
    let (conflicts, uncounted, step) = (0, 0, None);
    let mut driver = Driver { sagas, stopping, lease, held, attempts, conflicts, uncounted, is_fresh, step };
    driver.run(saga).await;
}

/// Releases a claimed saga that has not begun here, because this process has no slot for it.
pub(super) async fn give_back<DB: Dialect>(sagas: &Arc<Inner<DB>>, saga: &SagaRecord) {
    let held = Held::of(saga);
    let turn = Turn::Postpone { attempts: saga.outline.attempts, delay: Duration::ZERO, error: None };
    let given = async {
        let mut connection = sagas.db.acquire().await?;
        sagas.tables.turn(&mut connection, &held, &turn).await
    };
    if let Err(error) = sagas.db.call(given).await {
        tracing::warn!(saga = %saga.outline.id, %error, "a claimed saga was not released; its lease must \
                                                         expire first");
    }
}

impl<DB: Dialect> Driver<DB> {
    async fn run(&mut self, saga: SagaRecord) {
        // The first run needs no read: the claim returned the saga.
        let (mut found, mut outages) = (Some(saga), 0);
        loop {
            let next = match found.take() {
                Some(saga) => self.once(&saga).await,
                None => match (Sagas(Arc::clone(&self.sagas))).find(&self.held.id).await {
                    Ok(Some(saga)) if self.held.owns(&saga) => self.once(&saga).await,
                    Ok(_) => Ok(Next::Leave),
                    Err(error) => Err(error),
                },
            };
            match next {
                Ok(Next::Leave) => return,
                Ok(Next::Again) => outages = 0,
                Ok(Next::AfterOutage) => outages += 1,
                Err(error) => {
                    outages += 1;
                    self.uncounted = 0;
                    tracing::warn!(saga = %self.held.id, error = chain(&error), "the saga waits for the database");
                }
            }
            if outages > 0 {
                if self.stopping.is_cancelled() && outages > OUTAGES_AT_STOP {
                    return;
                }
                tokio::time::sleep(Backoff::OUTAGES.delay(outages, rand::random())).await;
            }
        }
    }

    /// Runs the function once, and acts on the result.
    async fn once(&mut self, saga: &SagaRecord) -> Result<Next, StoreError> {
        if saga.outline.state.has_ended() || saga.outline.stuck_at.is_some() {
            return Ok(Next::Leave);
        }
        if let (State::Running, Some(reason)) = (saga.outline.state, &saga.outline.cancel) {
            return self.begin_undo(reason).await;
        }
        self.attempts = saga.outline.attempts;
        let (steps, mailbox) = self.read(saga).await?;
        let target = match saga.outline.state {
            State::Undoing => match target(&steps) {
                Some(target) => Some(target),
                None => return self.end_undo().await,
            },
            _ => None,
        };
        let sagas = Arc::clone(&self.sagas);
        let Some(function) = sagas.registry.function(saga.outline.id.saga_type(), saga.outline.version)
        else {
            // Claims cover only registered versions.
            return Ok(Next::Leave);
        };
        let worn_out = self.worn_out(saga);
        if let (Some(reason), true) = (&worn_out, self.attempts > self.workers_max()) {
            // The extra run, which was meant to show the step at fault, also ended its worker.
            let open = || steps.iter().find(|step| step.is_open()).map(|step| step.name.clone());
            self.step = target.or_else(open);
            return self.stick(reason, self.attempts).await;
        }
        let lease = self.lease.clone();
        let read = Read { saga, lease, steps, mailbox, target: target.clone(), worn_out };
        let mut run = Run::new(Arc::clone(&self.sagas.base), self.stopping.clone(), read);
        let ended = AssertUnwindSafe(function.run(&mut run, &saga.input)).catch_unwind().await;
        let halt = run.take_halt(ended.is_err());
        // While the saga is undone, an operator may skip the undo that is due, wherever the run
        // ended.
        self.step = target.clone().or_else(|| run.ended_at());
        if run.parts().has_progressed {
            self.attempts = 0;
            self.conflicts = 0;
            self.uncounted = 0;
        }
        match (ended, halt) {
            // After a halt the result of the function is ignored, even a panic.
            (_, Some(halt)) => self.halted(halt, target.as_deref()).await,
            (Err(panic), None) => self.failed(&panic_text(&*panic), true, None).await,
            (Ok(Ended::Unfit(reason)), None) => self.stick(&reason, self.attempts).await,
            (Ok(_), None) if target.is_some() => self.unreached(target.as_deref(), None).await,
            (Ok(Ended::Stop(stop)), None) => self.begin_undo(stop.reason()).await,
            (Ok(Ended::Output(output)), None) => match run.forgotten_call() {
                Some(call) => {
                    let reason = format!(
                        "the function ended without the call {call}, whose outcome is unknown; run code that makes it, \
                         or cancel the saga"
                    );
                    self.stick(&reason, self.attempts).await
                }
                None => self.finish(&output, saga).await,
            },
        }
    }

    async fn halted(&mut self, halt: Halt, target: Option<&str>) -> Result<Next, StoreError> {
        match halt {
            Halt::Waiting | Halt::Vanished => Ok(Next::Leave),
            Halt::Failed { error, is_counted, delay } => self.failed(&error, is_counted, delay).await,
            Halt::Conflict(error) => {
                self.conflicts += 1;
                if self.conflicts >= CONFLICTS_MAX {
                    self.conflicts = 0;
                    let error = format!(
                        "it conflicted with other transactions {CONFLICTS_MAX} times: \
                                         {error}"
                    );
                    return self.failed(&error, true, None).await;
                }
                tracing::debug!(saga = %self.held.id, %error, "running the step again");
                tokio::time::sleep(CONFLICTS.delay(self.conflicts, rand::random())).await;
                Ok(Next::Again)
            }
            Halt::Stuck(reason) => self.stick(&reason, self.attempts).await,
            Halt::Changed => {
                // Rarely needed more than once; the pause avoids a tight loop.
                tokio::time::sleep(CONFLICTS.delay(1, rand::random())).await;
                Ok(Next::Again)
            }
            Halt::Stopping => {
                let turn = Turn::Postpone { attempts: self.attempts, delay: Duration::ZERO, error: None };
                self.turn(&turn).await?;
                Ok(Next::Leave)
            }
            Halt::Undone => Ok(Next::Again),
            Halt::Unreached(step) => self.unreached(target, Some(&step)).await,
        }
    }

    /// Reads the steps and replies, unless there can be none.
    async fn read(
        &mut self,
        saga: &SagaRecord,
    ) -> Result<(Vec<StepRecord>, Vec<(String, String)>), StoreError> {
        if std::mem::take(&mut self.is_fresh) && saga.replies == 0 {
            return Ok((Vec::new(), Vec::new()));
        }
        let sagas = Sagas(Arc::clone(&self.sagas));
        let mut connection = sagas.acquire().await?;
        let steps = self.sagas.tables.steps(&mut connection, &saga.outline.id);
        let steps = sagas.call("read the steps of a saga", steps).await?;
        let mailbox = if saga.replies == 0 {
            Vec::new()
        } else {
            let mailbox = self.sagas.tables.mailbox(&mut connection, &saga.outline.id);
            sagas.call("read the replies to a saga", mailbox).await?
        };
        Ok((steps, mailbox))
    }

    async fn turn(&self, turn: &Turn<'_>) -> Result<bool, StoreError> {
        let sagas = Sagas(Arc::clone(&self.sagas));
        let mut connection = sagas.acquire().await?;
        let turn = self.sagas.tables.turn(&mut connection, &self.held, turn);
        sagas.call("store the state of a saga", turn).await
    }

    async fn finish(&self, output: &str, saga: &SagaRecord) -> Result<Next, StoreError> {
        if self.sagas.vanishes_at(&self.held.id, crash_points::BEFORE_END).await {
            return Ok(Next::Leave);
        }
        if !finishing::finish(&self.sagas, &self.held, output).await? {
            // Cancelled meanwhile, or taken by another worker.
            return Ok(Next::Again);
        }
        telemetry::ended(saga.outline.id.saga_type(), State::Finished);
        tracing::debug!(saga = %saga.outline.id, "the saga has finished");
        Ok(Next::Leave)
    }

    async fn begin_undo(&mut self, reason: &str) -> Result<Next, StoreError> {
        let reason = storable(reason);
        if self.turn(&Turn::BeginUndo { reason: &reason }).await? {
            self.attempts = 0;
            tracing::info!(saga = %self.held.id, %reason, "the saga is being undone");
        }
        Ok(Next::Again)
    }

    async fn end_undo(&self) -> Result<Next, StoreError> {
        if self.sagas.vanishes_at(&self.held.id, crash_points::BEFORE_END).await {
            return Ok(Next::Leave);
        }
        if !self.turn(&Turn::EndUndo).await? {
            return Ok(Next::Again);
        }
        telemetry::ended(self.held.id.saga_type(), State::Undone);
        tracing::info!(saga = %self.held.id, "the saga has been undone");
        Ok(Next::Leave)
    }

    /// Postpones the saga, or leaves it to an operator after too many failures.
    async fn failed(
        &mut self,
        error: &str,
        is_counted: bool,
        delay: Option<Duration>,
    ) -> Result<Next, StoreError> {
        let error = storable(error);
        let mut attempts = self.attempts;
        if !is_counted && delay.is_none() && self.uncounted < UNCOUNTED_MAX {
            self.uncounted += 1;
            tracing::warn!(saga = %self.held.id, %error, "a step waits for the database");
            return Ok(Next::AfterOutage);
        }
        if is_counted || delay.is_none() {
            attempts = attempts.saturating_add(1);
            telemetry::failed(self.held.id.saga_type());
            if attempts >= self.sagas.options.attempts_max {
                return self.stick(&error, attempts).await;
            }
        }
        let delay = delay.unwrap_or_else(|| self.sagas.options.backoff.delay(attempts, rand::random()));
        // A longer delay leads to a time that the database cannot store.
        let delay = delay.min(SPAN_MAX);
        tracing::info!(saga = %self.held.id, %error, attempts, ?delay, "a step failed; trying again");
        self.turn(&Turn::Postpone { attempts, delay, error: Some(&error) }).await?;
        Ok(Next::Leave)
    }

    async fn stick(&self, error: &str, attempts: u32) -> Result<Next, StoreError> {
        let error = storable(error);
        let step = self.step.as_deref();
        if !self.turn(&Turn::Stick { attempts, error: &error, step }).await? {
            // Cancelled meanwhile, which takes precedence, or taken by another worker.
            return Ok(Next::Again);
        }
        tracing::error!(
            saga = %self.held.id, %error,
            "the saga is stuck, and an operator has to decide: see `relay sagas stuck`"
        );
        telemetry::stuck(self.held.id.saga_type());
        Ok(Next::Leave)
    }

    async fn unreached(&mut self, target: Option<&str>, at: Option<&str>) -> Result<Next, StoreError> {
        self.step = target.map(ToOwned::to_owned);
        let target = target.unwrap_or("?");
        let where_it_ended = match at {
            Some(step) => format!("the code reached the step {step} first, which has no outcome"),
            None => String::from("the code no longer reaches it"),
        };
        let error = format!(
            "the step {target} has to be undone, but {where_it_ended}; run code that has it, or skip it"
        );
        self.stick(&error, self.attempts).await
    }

    /// Returns the number of failures above which a claimed saga is not run again.
    fn workers_max(&self) -> u32 {
        self.sagas.options.attempts_max.max(WORKERS_MIN)
    }

    /// Returns why a claimed saga is not retried: its previous worker ended without storing
    /// anything, which counts as a failure, and its attempts are used up. Their number alone is not
    /// enough, because another process may allow more of them.
    fn worn_out(&self, saga: &SagaRecord) -> Option<String> {
        let is_lost = saga.outline.error.as_deref() == Some(LOST) && self.attempts >= self.workers_max();
        is_lost.then(|| format!("{LOST}; it failed {} times in a row", self.attempts))
    }
}

/// Returns the step to undo next: the last one that is pending.
fn target(steps: &[StepRecord]) -> Option<String> {
    let pending = steps.iter().filter(|step| step.undo == UndoState::Pending);
    pending.max_by_key(|step| step.position).map(|step| step.name.clone())
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the saga's code panicked: {}", text.unwrap_or_else(|| String::from("without a text")))
}
