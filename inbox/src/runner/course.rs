//! Records each failure of a message, and decides whether to retry it.

use std::error::Error;
use std::sync::atomic::Ordering;
use std::time::Duration;

use message::Message;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::failure::{Failure, FailureKind, is_of_session};
use super::step::{FailedAttempt, NewDeadLetter};
use super::store::Store;
use super::waits::{Outages, WaitReason, Waited, Waiting};
use super::worker::{GivenUp, Worker};
use crate::attempts::{Failed, Failures, Pause};
use crate::dead_letters::Reason;
use crate::error_text::error_text;
use crate::ids::{MessageName, Tenant};
use crate::store_error::StoreError;

/// The history of a message's attempts in this process.
#[derive(Debug, Default)]
pub(super) struct Course {
    /// Whether another process may have had it in hand.
    pub(super) is_suspect: bool,
    /// Whether the backoff set by another process is over.
    pub(super) is_resumed: bool,
    /// Number of counted failures, if any failure is recorded in the database.
    pub(super) failed_before: Option<u32>,
    /// Number of consecutive uncounted failures.
    pub(super) outages: Outages,
    /// Its wait for another process that has it in hand.
    pub(super) elsewhere: Option<Waiting>,
    /// Number of messages that had taken effect when it last failed.
    applied_then: Option<u64>,
    /// A process that had recorded that it had the message in hand, and had not begun to handle it.
    pub(super) not_begun: Option<Uuid>,
}

impl Course {
    pub(super) fn new(is_suspect: bool) -> Self {
        Self { is_suspect, ..Self::default() }
    }

    /// Returns whether an attempt in this process has failed.
    pub(super) fn has_failed_here(&self) -> bool {
        self.applied_then.is_some()
    }
}

/// The consequence of a recorded failure.
pub(super) enum Noted {
    /// It must be dead-lettered.
    Dead(NewDeadLetter),
    /// It was counted; contains the wait until the next attempt.
    Counted(Duration),
    /// It was not counted.
    Uncounted,
}

impl<S: Store> Worker<S> {
    /// Records a failure, and waits for the next attempt unless the message must be dead-lettered.
    pub(super) async fn note_failure(
        &self,
        tenant: &Tenant,
        message: &Message,
        course: &mut Course,
        failed: &FailedAttempt,
        give_up: &CancellationToken,
    ) -> Result<Option<NewDeadLetter>, GivenUp> {
        let error = &*failed.error;
        let of = Waited::one(message.id);
        let noted = self.count_failure(MessageName { tenant, id: message.id }, course, failed).await;
        match (noted, failed.delay) {
            (Ok(Noted::Dead(dead)), _) => return Ok(Some(dead)),
            (Ok(Noted::Counted(delay)), _) => {
                let _waiting = self.waits_for_retry(message, error);
                self.wait(delay, give_up).await?;
            }
            (Ok(Noted::Uncounted), Some(every)) => {
                tracing::info!(error = error_text(error), ?every, "not yet; trying again");
                let _waiting = self.waits_for_retry(message, error);
                self.wait(every, give_up).await?;
            }
            (Ok(Noted::Uncounted), None) => self.wait_out(&mut course.outages, of, error, give_up).await?,
            (Err(unnoted), _) => {
                tracing::warn!(error = error_text(&unnoted), "a failure could not be recorded");
                self.wait_out(&mut course.outages, of, error, give_up).await?;
            }
        }
        Ok(None)
    }

    fn waits_for_retry(&self, message: &Message, error: &(dyn Error + 'static)) -> Waiting {
        let waiting = self.waits(WaitReason::Retry, Waited::one(message.id));
        waiting.failed(error_text(error));
        waiting
    }

    /// Records a failure, and counts it if it is the message's own.
    pub(super) async fn count_failure(
        &self,
        message: MessageName<'_>,
        course: &mut Course,
        failed: &FailedAttempt,
    ) -> Result<Noted, StoreError> {
        let applied = self.applied.load(Ordering::Relaxed);
        let others_succeeded = course.applied_then.replace(applied).is_some_and(|then| applied > then);
        let kind = if is_of_session(&*failed.error) { FailureKind::Unavailable } else { failed.kind };
        let is_counted = kind.is_counted(others_succeeded);
        let text = error_text(&*failed.error);
        let pause = failed.delay.map_or(Pause::Backoff(self.backoff), Pause::Exactly);
        let pause = is_counted.then_some(pause);
        let is_returned = failed.kind.is_of_handler();
        let noting = Failed { error: &text, pause, is_returned };
        let noted = self.store.record_failure(message.tenant, message.id, noting).await?;
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
        course.outages = Outages::default();
        let attempts_max = self.limits.attempts_max;
        tracing::warn!(attempts, attempts_max, ?delay, error = text, "failed; trying again");
        Ok(Noted::Counted(delay))
    }
}
