//! The worker: claims due sagas, and runs them.
//!
//! | module | what it holds |
//! |---|---|
//! | `claims` | claims due sagas, fairly between types |
//! | `drive` | one saga, from the claim to its next pause |
//! | `endings` | sagas that are about to end |
//! | `finishing` | ends sagas, many in one statement |
//! | `maintenance` | forgets ended sagas, wakes stranded ones, and reports overdue ones |
//! | `renewal` | renews the leases of all running sagas with one statement |
//! | `room` | how many more sagas to claim, and when |

mod claims;
mod drive;
mod endings;
mod finishing;
mod maintenance;
mod renewal;
mod room;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use message::{Backoff, jittered};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::dialect::Dialect;
use crate::options::POLL_MIN;
use crate::sagas::Sagas;
use claims::Claims;
pub(crate) use endings::Finishing;
use renewal::InHand;
use room::Room;

impl<DB: Dialect> Sagas<DB> {
    /// Runs the sagas whose functions are registered, until `shutdown` ends. Then it claims no
    /// more, lets the running ones reach their next step
    /// ([`WorkerOptions::shutdown_grace`](crate::WorkerOptions)), and releases them. Any number of
    /// processes may run at once. It waits out outages of the database.
    ///
    /// Dropping the future loses nothing, but other workers must wait until the leases expire.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        let stopping = CancellationToken::new();
        let maintenance = AbortOnDropHandle::new(tokio::spawn(maintenance::keep_running(self.clone())));
        let in_hand = Arc::new(InHand::default());
        let renewal = renewal::keep_renewing(self.clone(), Arc::clone(&in_hand));
        let _renewal = AbortOnDropHandle::new(tokio::spawn(renewal));
        let mut running = JoinSet::new();
        let stopped_at = {
            let working = self.work(&mut running, &in_hand, &stopping);
            tokio::pin!(working, shutdown);
            tokio::select! {
                // It ends only when `stopping` is cancelled, which only this function does.
                () = &mut working => return,
                () = &mut shutdown => stopping.cancel(),
            }
            let stopped_at = Instant::now();
            // Otherwise a claim under way could lease sagas that no task would run.
            _ = timeout_at(stopped_at + self.0.options.shutdown_grace, working).await;
            stopped_at
        };
        drop(maintenance);
        let ended = async { while running.join_next().await.is_some() {} };
        if timeout_at(stopped_at + self.0.options.shutdown_grace, ended).await.is_err() {
            tracing::warn!(
                sagas = running.len(),
                "sagas did not reach their next step in time; their leases will expire"
            );
        }
    }

    /// Claims and runs sagas until it is stopped; sagas of the last claim that have not begun are
    /// released.
    async fn work(&self, running: &mut JoinSet<()>, in_hand: &Arc<InHand>, stopping: &CancellationToken) {
        let mut claims = Claims::new(self);
        let mut room = Room::new(self.0.options.concurrency);
        let (mut idle, mut failures) = (POLL_MIN, 0);
        while let Some(free) = stopping.run_until_cancelled(room.free(running)).await {
            let taken = match claims.take(free).await {
                Ok(taken) => taken,
                Err(error) => {
                    failures += 1;
                    tracing::warn!(%error, failures, "no sagas can be claimed; trying again");
                    let delay = Backoff::OUTAGES.delay(failures, rand::random());
                    stopping.run_until_cancelled(tokio::time::sleep(delay.max(POLL_MIN))).await;
                    continue;
                }
            };
            failures = 0;
            if taken.is_empty() {
                stopping.run_until_cancelled(self.rest(running, idle)).await;
                idle = (idle * 2).min(self.0.options.poll_max);
                continue;
            }
            idle = POLL_MIN;
            for (saga, lease) in taken {
                let (sagas, stopping, slot) = (Arc::clone(&self.0), stopping.clone(), room.slot());
                let in_hand = Arc::clone(in_hand);
                running.spawn(async move {
                    match stopping.run_until_cancelled(slot).await.flatten() {
                        Some(_slot) => drive::drive(sagas, in_hand, stopping, saga, lease).await,
                        None => drive::give_back(&sagas, &saga).await,
                    }
                });
            }
        }
    }

    /// Waits for a hint, for the end of a saga, or for the next poll.
    async fn rest(&self, running: &mut JoinSet<()>, idle: Duration) {
        tokio::select! {
            () = self.0.notify.notified() => {}
            Some(_) = running.join_next() => {}
            () = tokio::time::sleep(jittered(idle, rand::random())) => {}
        }
    }
}
