//! Producers are held back while consumers are far behind.
//!
//! Without it a storm that lasts measures the machine: what producers enqueue faster than it can
//! carry is still on its way at the end, and there is no verdict.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::read;
use crate::setup::Plot;
use crate::stage::Stage;

/// Messages without an effect, counted for each consumer, from which on producers are held back.
/// What an outage of half a minute leaves behind stays below it.
const BEHIND_MAX: u64 = 10_000;
/// They go on below this share of it.
const RELEASE_SHARE: u64 = 2;
/// Between two looks, at least.
const LOOK: Duration = Duration::from_secs(2);
/// Looking takes at most this share of the time.
const LOOK_SHARE: u32 = 9;
/// How often a producer that is held back asks again.
const ASK: Duration = Duration::from_millis(100);

/// The order in the storm's folder.
fn order(folder: &Path) -> PathBuf {
    folder.join("held-back")
}

/// For a producer, before each operation: waits while it is held back.
pub(crate) async fn obey(folder: &Path) {
    while order(folder).exists() {
        sleep(ASK).await;
    }
}

/// Holds producers back, and counts for how long.
#[derive(Debug, Default)]
pub(crate) struct Backpressure {
    millis: AtomicU64,
}

impl Backpressure {
    /// For how long they were held back.
    pub(crate) fn lasted(&self) -> Duration {
        Duration::from_millis(self.millis.load(Ordering::Relaxed))
    }

    /// Looks on for as long as it is polled. Afterwards [`release`] lets producers go.
    pub(crate) async fn watch(self: Arc<Self>, plot: Plot, stage: Arc<Stage>) {
        let order = order(&plot.folder);
        let mut looked_at = Instant::now();
        loop {
            let began = Instant::now();
            // A server that is away says nothing: everybody goes on as before.
            if let Ok(pending) = read::pending(&plot, &stage).await {
                let written = if must_wait(order.exists(), pending.undecided) {
                    std::fs::write(&order, [])
                } else {
                    remove(&order)
                };
                if let Err(error) = written {
                    eprintln!("producers cannot be held back: {}: {error}", order.display());
                }
            }
            sleep(LOOK.max(began.elapsed() * LOOK_SHARE)).await;
            if order.exists() {
                let millis = u64::try_from(looked_at.elapsed().as_millis()).unwrap_or(u64::MAX);
                self.millis.fetch_add(millis, Ordering::Relaxed);
            }
            looked_at = Instant::now();
        }
    }
}

/// Lets producers go.
///
/// # Errors
/// The order cannot be removed.
pub(crate) fn release(plot: &Plot) -> std::io::Result<()> {
    remove(&order(&plot.folder))
}

fn remove(order: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(order) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether producers have to wait from now on.
fn must_wait(do_wait: bool, behind: u64) -> bool {
    behind > if do_wait { BEHIND_MAX / RELEASE_SHARE } else { BEHIND_MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn producers_wait_until_half_of_what_held_them_back_has_taken_effect() {
        let mut waits = false;
        let seen = [9_000, 10_001, 9_000, 5_001, 5_000, 9_000].map(|behind| {
            waits = must_wait(waits, behind);
            waits
        });
        assert_eq!(seen, [false, true, true, true, false, false]);
    }
}
