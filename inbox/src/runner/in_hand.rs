//! Notes that this process has a message in hand, so that the end of a process is counted.

use std::time::Duration;

use message::{Backoff, Message};
use tokio::sync::SemaphorePermit;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::course::Course;
use super::dead_letter::NewDeadLetter;
use super::step::Step;
use super::store::Store;
use super::worker::{GivenUp, Worker};
use crate::attempts::{InHand, error_text};
use crate::handler::RETRY_AFTER_MAX;
use crate::name::{MessageName, Tenant};
use crate::reason::Reason;

/// Maximum time in which a process begins to handle what it has noted to be in hand. One that has
/// not begun by then has ended.
pub(super) const BEGINS_WITHIN: Duration = Duration::from_secs(1);

/// How often a process asks for a message that another process handles.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Number of processes that may end with a message and others in hand. After that nothing runs
/// beside it, so that it affects no other message.
const ENDS_BESIDE_MAX: u32 = 2;

impl<S: Store> Worker<S> {
    /// Notes that this process has a message in hand, and respects the backoff of another process
    /// in which it failed. If another process handles it now, waits for that one without a permit.
    /// Returns the number of counted failures.
    pub(super) async fn take_in_hand<'a>(
        &'a self,
        tenant: &Tenant,
        message: &Message,
        course: &mut Course,
        permit: &mut Option<SemaphorePermit<'a>>,
        give_up: &CancellationToken,
    ) -> Result<u32, Step> {
        let this = [MessageName { tenant, id: message.id }];
        loop {
            let taken = self.store.take_in_hand(&this).await.map_err(Step::away)?;
            let Some(in_hand) = taken.first().copied() else {
                return Err(Step::away("the database did not note what is in hand"));
            };
            let InHand { failures, ends, owner, next_at } = in_hand;
            if let Some(owner) = owner {
                self.take_over(this[0], owner, course).await?;
                continue;
            }
            if let Some(error) = in_hand.given_up() {
                return Err(Step::DeadLetter(NewDeadLetter::new(Reason::Poison, error, failures)));
            }
            let left = Duration::try_from(next_at - self.store.now()).unwrap_or_default();
            let must_wait = !std::mem::replace(&mut course.is_resumed, true) && !left.is_zero();
            if !must_wait && (ends < ENDS_BESIDE_MAX || self.is_alone(permit.as_ref())) {
                return Ok(failures);
            }
            // A waiting message is not in hand.
            self.store.put_down(&this).await.map_err(Step::away)?;
            if must_wait {
                return Err(Step::Later(left.min(pause_max(self.backoff))));
            }
            drop(permit.take());
            let all = self.permits(self.permits_max, give_up).await;
            *permit = Some(all.map_err(|GivenUp| Step::GivenUp)?);
        }
    }

    /// Takes over a message that another process has noted to be in hand, if that process has
    /// ended. Otherwise returns the step that waits for it.
    async fn take_over(
        &self,
        message: MessageName<'_>,
        owner: Uuid,
        course: &mut Course,
    ) -> Result<(), Step> {
        // A broker also redelivers messages that a live process works on: after a rebalance, a
        // lost session, or a visibility timeout.
        let MessageName { tenant, id } = message;
        if self.store.is_being_handled(tenant, id).await.map_err(Step::away)? {
            self.ended_owners.remove(owner);
            course.not_begun = None;
            return Err(Step::Later(ASK_AGAIN));
        }
        let was_seen_before = course.not_begun.replace(owner) == Some(owner);
        if !self.ended_owners.has_ended(owner, was_seen_before) {
            return Err(Step::Later(BEGINS_WITHIN));
        }
        self.store.take_over(tenant, id, owner).await.map_err(Step::away)
    }

    /// Returns whether a permit comprises all of them, so that nothing runs beside its holder.
    fn is_alone(&self, permit: Option<&SemaphorePermit<'_>>) -> bool {
        let held = permit.map_or(0, SemaphorePermit::num_permits);
        u32::try_from(held).unwrap_or(u32::MAX) >= self.permits_max
    }

    /// Notes that messages are no longer in hand. If that fails, it may look as if this process had
    /// ended with them in hand.
    pub(super) async fn put_down_unhandled(&self, messages: &[MessageName<'_>]) {
        if let Err(error) = self.store.put_down(messages).await {
            let error = error_text(&error);
            tracing::debug!(consumer = %self.consumer, error, "messages could not be noted as no longer in hand");
        }
    }
}

/// Returns the maximum time between two attempts of a message. Waits that are noted beyond it come
/// from a clock that was ahead.
fn pause_max(backoff: Backoff) -> Duration {
    backoff.max.max(RETRY_AFTER_MAX)
}
