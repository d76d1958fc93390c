//! Runs the work beside the loop, each kind in its own task: maintenance, redrives and counts.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Drive;
use crate::activity::STORE_EVERY;
use crate::error_text::error_text;
use crate::runner::held::HeldLook;
use crate::runner::options::RunnerOptions;
use crate::runner::store::Store;
use crate::runner::worker::Worker;

/// Maximum time spent on operators' redrives, and then on held messages, before switching to the
/// other.
const REDRIVING_MAX: Duration = Duration::from_secs(10);

/// Maximum time to note that redrives which a stop has interrupted are no longer in hand.
const REDRIVES_END_MAX: Duration = Duration::from_secs(2);

/// The tasks beside the loop; dropping it ends them.
pub(super) struct Background {
    _maintenance: Option<AbortOnDropHandle<()>>,
    redrives: Option<AbortOnDropHandle<()>>,
    _counts: AbortOnDropHandle<()>,
}

impl Background {
    /// Ends the tasks, after the drive has let no other redrive begin. One that still runs is
    /// abandoned, and noted as abandoned. Otherwise the next process would assume that it had ended
    /// this process.
    pub(super) async fn end<S: Store>(self, worker: &Worker<S>) {
        worker.store.stop_redrives();
        if let Some(redrives) = self.redrives {
            _ = tokio::time::timeout(REDRIVES_END_MAX, redrives).await;
        }
    }
}

impl<S: Store> Drive<S> {
    /// Begins the work beside the loop.
    pub(super) fn begin_background(&self) -> Background {
        let worker = || Arc::clone(&self.worker);
        let RunnerOptions { maintain_interval, redrive_interval, .. } = self.settings;
        let redriving = |period| self.spawn(redrive(worker(), period, self.draining.clone()));
        Background {
            _maintenance: maintain_interval.map(|period| self.spawn(maintain(worker(), period))),
            redrives: redrive_interval.map(redriving),
            _counts: self.spawn(store_counts(worker())),
        }
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(self.worker.host.spawn(work))
    }
}

async fn maintain<S: Store>(worker: Arc<Worker<S>>, period: Duration) {
    loop {
        tokio::time::sleep(period).await;
        watched("inbox maintenance", worker.store.maintain()).await;
    }
}

async fn redrive<S: Store>(worker: Arc<Worker<S>>, period: Duration, stop: CancellationToken) {
    let mut look = HeldLook::default();
    let mut after = None;
    let mut is_more = false;
    while !stop.is_cancelled() {
        let pause = if is_more { Duration::ZERO } else { period };
        if worker.wait(pause, &stop).await.is_err() {
            return;
        }
        // Redrives and held messages each have their own time limit, so neither blocks the other.
        // The permit is one of those for deliveries. So no more handlers run at once than
        // configured, and none runs beside a message that must be alone.
        let permit = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            permit = worker.permits.acquire() => permit,
        };
        let Ok(_permit) = permit else { return };
        let ends_at = Instant::now() + REDRIVING_MAX;
        let requested = worker.store.redrive_requested(after.unwrap_or_default(), ends_at);
        after = watched("requested redrives", requested).await.flatten();
        let ends_at = Instant::now() + REDRIVING_MAX;
        let held = watched("redrives of held messages", worker.redrive_held(&mut look, ends_at)).await;
        is_more = after.is_some() || held.unwrap_or_default();
    }
}

async fn store_counts<S: Store>(worker: Arc<Worker<S>>) {
    loop {
        tokio::time::sleep(STORE_EVERY).await;
        worker.store_counts().await;
    }
}

/// Runs background work and logs its failure. Work that fails or panics is tried again at the next
/// interval: if the task ended silently, that would go unnoticed until its work is needed.
async fn watched<T, E: std::error::Error + 'static>(
    what: &'static str,
    work: impl Future<Output = Result<T, E>>,
) -> Option<T> {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(done)) => Some(done),
        Ok(Err(error)) => {
            tracing::error!(error = error_text(&error), "{what} failed; trying again");
            None
        }
        Err(_) => {
            tracing::error!("{what} panicked; trying again");
            None
        }
    }
}
