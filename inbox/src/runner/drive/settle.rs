//! Settles deliveries whose work has ended, and releases the others.

use std::collections::VecDeque;

use message::Settlement;
use message::crash_points::reached;
use tokio::task::JoinError;

use super::broker_call::answered;
use super::{Drive, Finished, place_of};
use crate::crash_points;
use crate::error_text::error_text;
use crate::runner::batch::{Settled, Sorted};
use crate::runner::key_queues::Held;
use crate::runner::run_error::RunError;
use crate::runner::step::Done;
use crate::runner::store::Store;

impl<S: Store> Drive<S> {
    /// Collects all finished work and settles it in one call.
    pub(super) async fn finished(&mut self, first: Result<Finished, JoinError>) -> Result<(), RunError> {
        let mut settlements = Vec::new();
        let mut next = Some(first);
        while let Some(finished) = next {
            match finished? {
                Finished::One(held, done) => {
                    self.key_queues.finished(&held);
                    settlements.extend(self.settlement(&held, done));
                }
                Finished::Batch(sorted) => self.sorted(sorted, &mut settlements),
            }
            next = self.running.try_join_next();
        }
        self.settle(settlements).await;
        Ok(())
    }

    /// Takes over the outcome of a batch.
    fn sorted(&mut self, sorted: Sorted, settlements: &mut Vec<Settlement>) {
        self.is_batch_running = false;
        for Settled { held, done } in sorted.settled {
            settlements.extend(self.settlement(&held, Some(done)));
        }
        for held in sorted.released {
            settlements.extend(self.settlement(&held, None));
        }
        let is_present = |held: &Held| held.session == self.session;
        sorted.singles.into_iter().filter(is_present).for_each(|held| self.key_queues.push(held));
        // A delivery received meanwhile goes into the lane of a single delivery that it follows.
        let (behind, batchable) = std::mem::take(&mut self.batchable)
            .into_iter()
            .partition::<VecDeque<_>, _>(|held| self.key_queues.is_busy(held.lane.as_ref()));
        self.batchable = batchable;
        behind.into_iter().for_each(|held| self.key_queues.push(held));
    }

    /// Returns how a delivery is settled: `None` for one of a lost session, because its token is no
    /// longer valid, and the message is redelivered.
    fn settlement(&mut self, held: &Held, done: Option<Done>) -> Option<Settlement> {
        let token = held.delivery.token;
        if held.session != self.session || !self.unsettled.contains(&token) {
            return None;
        }
        let Some(Done { proof, is_handled }) = done else { return Some(Settlement::release(token)) };
        if !is_handled && let Some(seen) = self.seen.get_mut(place_of(&held.delivery)) {
            *seen = seen.saturating_sub(1);
        }
        match Settlement::done(&held.delivery, proof) {
            Ok(settlement) => Some(settlement),
            Err(error) => {
                tracing::error!(
                    error = error_text(&error),
                    "handed back: the proof belongs to another \
                                                             message"
                );
                Some(Settlement::release(token))
            }
        }
    }

    async fn settle(&mut self, settlements: Vec<Settlement>) {
        let Self { shutdown, worker, broker_session, .. } = self;
        let Some(subscription) = broker_session.subscription() else { return };
        if settlements.is_empty() {
            return;
        }
        let is_release = |s: &&Settlement| *s.disposition() == message::Disposition::Release;
        let released = settlements.iter().filter(is_release).count();
        let settled = settlements.len() - released;
        let tokens: Vec<_> = settlements.iter().map(Settlement::token).collect();
        match answered(&shutdown.abort, &worker.status, subscription.settle(settlements)).await {
            // Nothing more is settled.
            None => {}
            Some(Ok(())) => {
                reached(crash_points::AFTER_SETTLE);
                tracing::debug!(consumer = %self.worker.consumer, settled, released, "settled");
                self.worker.meter.settled(settled);
                if settled > 0 {
                    self.worker.status.settled();
                }
                self.worker.meter.released(released);
                tokens.iter().for_each(|token| {
                    self.unsettled.remove(token);
                });
            }
            Some(Err(error)) => self.lost(&error),
        }
    }

    /// Returns deliveries that no worker has begun to the broker.
    pub(super) async fn release_queued(&mut self) {
        let mut queued = self.key_queues.drain();
        queued.extend(self.batchable.drain(..));
        let releases = queued.iter().filter_map(|held| self.settlement(held, None)).collect();
        self.settle(releases).await;
    }
}
