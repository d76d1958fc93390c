//! Runs the work beside the loop, each kind in its own task: maintenance, redrives and counts.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;
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

/// The tasks beside the loop; dropping it ends them.
pub(super) struct Background {
    _maintenance: Option<AbortOnDropHandle<()>>,
    _redrives: Option<AbortOnDropHandle<()>>,
    _counts: AbortOnDropHandle<()>,
}

impl<S: Store> Drive<S> {
    /// Begins the work beside the loop.
    pub(super) fn begin_background(&self) -> Background {
        let worker = || Arc::clone(&self.worker);
        let RunnerOptions { maintain_interval, redrive_interval, .. } = self.settings;
        Background {
            _maintenance: maintain_interval.map(|period| self.spawn(maintain(worker(), period))),
            _redrives: redrive_interval.map(|period| self.spawn(redrive(worker(), period))),
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

async fn redrive<S: Store>(worker: Arc<Worker<S>>, period: Duration) {
    let mut look = HeldLook::default();
    let mut after = None;
    let mut is_more = false;
    loop {
        if !is_more {
            tokio::time::sleep(period).await;
        }
        // Redrives and held messages each have their own time limit, so neither blocks the other.
        // The permit is one of those for deliveries. So no more handlers run at once than
        // configured, and none runs beside a message that must be alone.
        let Ok(_permit) = worker.permits.acquire().await else { return };
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
