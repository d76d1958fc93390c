//! Producers are held back while consumers are far behind.
//!
//! Without backpressure a long storm measures the machine. Messages that producers enqueue faster
//! than the machine can process them are still in flight at the end, and there is no verdict.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::read;
use crate::setup::Plot;
use crate::stage::Stage;

/// Maximum number of messages without an effect, counted for each consumer, before producers are
/// held back. The backlog of an outage of half a minute stays below it.
const BEHIND_MAX: u64 = 10_000;
/// Producers continue once the backlog is at most `BEHIND_MAX` divided by this number.
const RELEASE_SHARE: u64 = 2;
/// Minimum time between two checks of the backlog.
const LOOK: Duration = Duration::from_secs(2);
/// Pause after a check, as a multiple of its duration, so that checks use at most a tenth of the
/// time.
const LOOK_SHARE: u32 = 9;
/// Interval at which a producer that is held back checks again.
const ASK: Duration = Duration::from_millis(100);

/// Returns the path of the file in the storm's folder whose presence holds producers back.
fn order(folder: &Path) -> PathBuf {
    folder.join("held-back")
}

/// Waits while producers are held back. A producer calls this before each operation.
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
    /// Returns the total time for which producers were held back.
    pub(crate) fn lasted(&self) -> Duration {
        Duration::from_millis(self.millis.load(Ordering::Relaxed))
    }

    /// Watches the backlog for as long as it is polled. Afterwards [`release`] lets producers
    /// continue.
    pub(crate) async fn watch(self: Arc<Self>, plot: Plot, stage: Arc<Stage>) {
        let order = order(&plot.folder);
        let mut looked_at = Instant::now();
        loop {
            let began = Instant::now();
            // While a server is unreachable, the backlog is unknown and nothing changes.
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

/// Lets producers continue.
///
/// # Errors
/// The file that holds producers back cannot be removed.
pub(crate) fn release(plot: &Plot) -> std::io::Result<()> {
    remove(&order(&plot.folder))
}

fn remove(order: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(order) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns whether producers have to wait from now on.
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
