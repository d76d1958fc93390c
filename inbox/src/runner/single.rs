//! Handles one delivery to its end: attempts it until it can be settled.

use message::{Delivery, Message};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::apply::OneAttempt;
use super::course::Course;
use super::gather::Whole;
use super::key_queues::Held;
use super::step::{Done, FailedAttempt, NewDeadLetter, Step};
use super::store::Store;
use super::waits::{WaitReason, Waited};
use super::worker::{GivenUp, Worker};
use crate::dead_letters::Reason;
use crate::ids::{MessageName, Tenant};
use crate::refusal::Refusal;

impl<S: Store> Worker<S> {
    /// Works on a delivery until it can be settled, or until it must stop waiting.
    pub(super) async fn run_one(&self, held: &Held, give_up: &CancellationToken) -> Result<Done, GivenUp> {
        let delivery = &held.delivery;
        let message = match &delivery.message {
            Ok(message) => message,
            Err(malformed) => {
                self.meter.refused(Reason::Malformed);
                let dead = NewDeadLetter::new(Reason::Malformed, malformed.problem.clone(), 0);
                let stored = self.store_dead_letter(delivery, &Tenant::none(), dead, give_up).await;
                return stored.map(Done::now);
            }
        };
        let span = self.process_span(message, &delivery.origin);
        let course = Course::new(held.is_suspect);
        self.run_message(delivery, message, course, give_up).instrument(span).await
    }

    async fn run_message(
        &self,
        delivery: &Delivery,
        message: &Message,
        mut course: Course,
        give_up: &CancellationToken,
    ) -> Result<Done, GivenUp> {
        let tenant = match self.reader.tenant(message) {
            Ok(tenant) => tenant,
            Err(problem) => {
                self.meter.refused(Reason::NoTenant);
                let dead = NewDeadLetter::new(Reason::NoTenant, problem, 0);
                let stored = self.store_dead_letter(delivery, &Tenant::none(), dead, give_up).await;
                return stored.map(Done::now);
            }
        };
        loop {
            let dead = match self.attempt(&tenant, message, &mut course, give_up).await {
                Step::Settle(done) => return Ok(done),
                Step::DeadLetter(dead) => dead,
                Step::Failed(failed) => {
                    match self.note_failure(&tenant, message, &mut course, &failed, give_up).await? {
                        Some(dead) => of_failure(dead, failed),
                        None => continue,
                    }
                }
                Step::Away(error) => {
                    let of = Waited::one(message.id);
                    self.wait_out(&mut course.outages, of, &*error, give_up).await?;
                    continue;
                }
                Step::Later(delay) => {
                    let enter = || self.waits(WaitReason::AnotherProcess, Waited::one(message.id));
                    course.elsewhere.get_or_insert_with(enter);
                    self.wait(delay, give_up).await?;
                    continue;
                }
                Step::GivenUp => return Err(GivenUp),
            };
            let stored = self.store_dead_letter(delivery, &tenant, dead, give_up).await?;
            // The attempts of a message whose id another one uses stay, and with them the note.
            if course.is_suspect || course.failed_before.is_some() {
                let this = [MessageName { tenant: &tenant, id: message.id }];
                _ = self.noted(self.put_down_unhandled(&this), give_up).await;
            }
            return Ok(Done::now(stored));
        }
    }

    async fn attempt(
        &self,
        tenant: &Tenant,
        message: &Message,
        course: &mut Course,
        give_up: &CancellationToken,
    ) -> Step {
        let Ok(permit) = self.permits(1, give_up).await else { return Step::GivenUp };
        let _waiting = self.waits(WaitReason::Database, Waited::one(message.id));
        let mut permit = Some(permit);
        let mut failed_before = None;
        let mut given_up = None;
        if course.is_suspect || course.failed_before.is_some() {
            let taking = self.take_in_hand(tenant, message, course, &mut permit, give_up);
            let Ok(taken) = self.noted(taking, give_up).await else { return Step::GivenUp };
            match taken {
                Ok(failures) => failed_before = Some(failures),
                // Only the whole message is dead-lettered, so its chunks are gathered first.
                Err(Step::DeadLetter(dead)) if message.chunk.is_some() => {
                    failed_before = Some(dead.cause.attempts);
                    given_up = Some(dead);
                }
                Err(step) => {
                    if matches!(step, Step::DeadLetter(_)) {
                        self.meter.failed();
                    }
                    return step;
                }
            }
        }
        course.elsewhere = None;
        let attempt = OneAttempt { tenant, message, failed_before, begun_at: Instant::now() };
        let begun = self.begin(give_up).await;
        if !matches!(begun, Ok(Ok(_))) && failed_before.is_some() {
            // Without an answer the note stays, as after the end of this process.
            _ = self.noted(self.put_down_unhandled(&[attempt.name()]), give_up).await;
        }
        let tx = match begun {
            Ok(Ok(tx)) => tx,
            Ok(Err(error)) => return Step::away(error),
            Err(GivenUp) => return Step::GivenUp,
        };
        if message.chunk.is_none() {
            return self.apply_one(tx, attempt).await;
        }
        let Whole { tx, message: whole } = match self.gather(tx, attempt, course).await {
            Ok(whole) => whole,
            Err(step) => return step,
        };
        let step = match given_up {
            Some(dead) => self.give_up(tx, dead).await,
            None => self.apply_one(tx, OneAttempt { message: &whole, ..attempt }).await,
        };
        step.of_whole(whole)
    }
}

/// Returns the dead letter of a message that failed too often. A refusal gives its own reason.
fn of_failure(dead: NewDeadLetter, failed: FailedAttempt) -> NewDeadLetter {
    let FailedAttempt { error, whole, .. } = failed;
    let mut dead = NewDeadLetter { whole, ..dead };
    if let Some(refusal) = error.downcast_ref::<Refusal>() {
        dead.cause.reason = Reason::from(refusal);
    }
    dead
}
