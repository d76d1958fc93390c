//! Redrives one held message, and decides what its failure means.

use std::collections::HashMap;

use tokio::time::Instant;

use crate::dead_letters::{Cause, FailedTurn, HeldKey, Reason, Resolution, Turn};
use crate::error::RedriveError;
use crate::error_text::error_text;
use crate::handler::{HandlerError, Next};
use crate::ids::{DeadLetterId, MessageName};
use crate::runner::course::{Course, Noted};
use crate::runner::failure::FailureKind;
use crate::runner::handling::of_staged;
use crate::runner::step::FailedAttempt;
use crate::runner::store::Store;
use crate::runner::worker::Worker;
use crate::store_error::StoreError;

/// Maximum number of failing messages whose attempts are remembered. The next walk finds others.
/// The database counts the failures of all.
const COURSES_MAX: usize = 1_000;

/// The attempts at held messages that fail.
pub(super) type HeldCourses = HashMap<DeadLetterId, HeldCourse>;

/// The attempts at a held message that fails.
#[derive(Debug)]
pub(super) struct HeldCourse {
    /// Its key.
    pub(super) key: HeldKey,
    course: Course,
}

#[cfg(test)]
impl HeldCourse {
    pub(super) fn sample() -> Self {
        let key = HeldKey { tenant: String::new(), topic: String::from("orders"), key: String::from("a") };
        Self { key, course: Course::default() }
    }
}

/// The consequence of a failed redrive.
enum Consequence {
    /// The failure shows nothing about the message: the next check tries again.
    Later,
    /// It becomes an ordinary dead letter.
    Dead(Reason, String),
    /// It is tried again, within the limits of any message.
    Failed(FailedAttempt),
}

impl Consequence {
    fn failed(kind: FailureKind, error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Failed(FailedAttempt::new(kind, error))
    }
}

impl From<RedriveError> for Consequence {
    fn from(error: RedriveError) -> Self {
        match error {
            RedriveError::Handler(error) => error.into(),
            RedriveError::Commit(error) => match of_staged(error) {
                Ok(error) => error.into(),
                Err(error) if error.is_innocent() => Self::failed(FailureKind::Database, error),
                Err(error) => Self::failed(FailureKind::Own, error),
            },
            RedriveError::Refused(refusal) => Self::Dead(Reason::from(&refusal), refusal.to_string()),
            RedriveError::NotAMessage { problem, .. } => Self::Dead(Reason::Poison, problem),
            RedriveError::Admit(error) => Self::failed(FailureKind::Database, error),
            // The handler broke its transaction: its own failure.
            RedriveError::Store(error) if !error.is_transient() => {
                HandlerError::of_broken_transaction(error).into()
            }
            RedriveError::Store(error) => Self::failed(FailureKind::Database, error),
            _ => Self::Later,
        }
    }
}

impl From<HandlerError> for Consequence {
    fn from(error: HandlerError) -> Self {
        match error.next() {
            Next::Reject => Self::Dead(Reason::Rejected, error_text(&error)),
            Next::Retry => {
                let delay = error.delay();
                Self::Failed(FailedAttempt::new(FailureKind::Own, error).after(delay))
            }
            // The next check tries again, whatever the handler has asked for.
            Next::Unavailable | Next::NotYet => Self::failed(FailureKind::Unavailable, error),
            Next::Database => Self::failed(FailureKind::Database, error),
        }
    }
}

impl<S: Store> Worker<S> {
    /// Redrives a held message if it is due. Returns whether it is closed now.
    pub(super) async fn take_turn(
        &self,
        letter: DeadLetterId,
        key: &HeldKey,
        courses: &mut HeldCourses,
    ) -> Result<bool, StoreError> {
        let begun_at = Instant::now();
        match self.store.redrive_in_turn(letter).await {
            Ok(Turn::Closed(resolution)) => {
                match resolution {
                    Resolution::Duplicate => self.meter.duplicates(1),
                    _ => self.succeeded(1, begun_at.elapsed()),
                }
                courses.remove(&letter);
                Ok(true)
            }
            Ok(Turn::NotNow) => Ok(false),
            Ok(Turn::Failed(failed)) => {
                self.end_failed_turn(letter, key, *failed, courses).await;
                Ok(false)
            }
            Err(error) if error.is_transient() => Err(error),
            // The error concerns this message only; continue with the others.
            Err(error) => {
                tracing::error!(error = error_text(&error), "a held message was not redriven");
                Ok(false)
            }
        }
    }

    /// Records that a held message failed, and turns it into an ordinary dead letter if it reached
    /// a limit.
    async fn end_failed_turn(
        &self,
        letter: DeadLetterId,
        key: &HeldKey,
        failed: FailedTurn,
        courses: &mut HeldCourses,
    ) {
        let FailedTurn { tenant, message_id, failures, error } = failed;
        let message = MessageName { tenant: &tenant, id: message_id };
        if matches!(&error, RedriveError::Handler(error) if error.is_timeout()) {
            self.meter.timed_out();
        }
        let cause = match Consequence::from(error) {
            Consequence::Later => None,
            Consequence::Dead(reason, error) => {
                self.meter.failed();
                Some(Cause { reason, error, attempts: failures.saturating_add(1) })
            }
            Consequence::Failed(failed) => {
                let new = || HeldCourse { key: key.clone(), course: Course::default() };
                let mut forgotten = Course::default();
                let course = if courses.len() < COURSES_MAX || courses.contains_key(&letter) {
                    &mut courses.entry(letter).or_insert_with(new).course
                } else {
                    &mut forgotten
                };
                self.count_failed_turn(message, course, &failed).await
            }
        };
        if let Some(cause) = cause
            && self.fail_held(letter, message, cause).await
        {
            courses.remove(&letter);
        }
    }

    /// Counts a failure of a held message. Returns the reason to stop retrying it, once it reaches
    /// a limit.
    async fn count_failed_turn(
        &self,
        message: MessageName<'_>,
        course: &mut Course,
        failed: &FailedAttempt,
    ) -> Option<Cause> {
        match self.count_failure(message, course, failed).await {
            Ok(Noted::Dead(dead)) => return Some(dead.cause),
            Ok(Noted::Counted(_)) => {}
            Ok(Noted::Uncounted) => {
                self.meter.outage();
                let error = error_text(&*failed.error);
                tracing::warn!(error, "failed, not counted; trying again");
            }
            Err(unnoted) => {
                let error = error_text(&*failed.error);
                let unnoted = error_text(&unnoted);
                tracing::warn!(error, unnoted, "a failure could not be recorded");
            }
        }
        None
    }

    /// Turns a held message into an ordinary dead letter. Returns whether that succeeded.
    async fn fail_held(&self, letter: DeadLetterId, message: MessageName<'_>, cause: Cause) -> bool {
        let Cause { reason, error, attempts } = cause.clone();
        match self.store.fail_held(letter, message, cause).await {
            Ok(true) => {}
            Ok(false) => return false,
            Err(unstored) => {
                let unstored = error_text(&unstored);
                tracing::warn!(error, unstored, "a held message was not dead-lettered");
                return false;
            }
        }
        self.meter.dead(reason);
        let message_id = message.id;
        tracing::error!(%message_id, %reason, attempts, error, "a held message was dead-lettered");
        true
    }
}
