//! Keeps an outbox bounded, beside the engine: removes history that every relay has passed.
//!
//! It needs no lease: the database decides what can be removed, and any number of processes may run
//! it at once.

use std::sync::Arc;
use std::time::Duration;

use outbox_log::retention::LogRetention;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use tokio_util::sync::CancellationToken;

use crate::telemetry::History;

/// Time between two checks of the history. A check reads about 100 buffers and writes nothing.
const INTERVAL: Duration = Duration::from_secs(60);
/// Delay of the first check, so that it does not disturb the start.
const FIRST: Duration = Duration::from_secs(5);

/// How long a stop waits for a pass that has begun, so that the pass can report what it did.
pub const STOP_GRACE: Duration = Duration::from_secs(2);
/// How long history is kept by default: three days. After a weekend, operators can still
/// investigate, and an id that was generated twice is still found.
pub const KEEP_DEFAULT: Duration = Duration::from_secs(3 * 24 * 3_600);
/// How long decisions of operators are kept by default: three years, as in inboxes, keys and sagas.
pub const KEEP_DECISIONS_DEFAULT: Duration = Duration::from_secs(1_096 * 24 * 3_600);

/// The maintenance of one outbox.
#[derive(Clone)]
pub struct Maintenance {
    /// The log that is maintained.
    pub log: Arc<dyn LogRetention>,
    /// How long history is kept.
    pub keep: Duration,
    /// How long decisions of operators are kept; forever with `None`.
    pub keep_decisions: Option<Duration>,
    /// Reports what happened.
    pub telemetry: History,
}

impl Maintenance {
    /// Runs until it is stopped, and restarts when a bug in this program ends it.
    pub async fn keep_running(self, stop: CancellationToken) {
        loop {
            // In a separate task, so that a panic ends nothing else. Dropping the set aborts the
            // task.
            let mut task = JoinSet::new();
            task.spawn(self.clone().run(stop.clone()));
            let Some(Err(fault)) = task.join_next().await else { return };
            self.telemetry.ended(&fault);
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep(INTERVAL) => {}
            }
        }
    }

    /// Runs until it is stopped. A failure is reported, and the next check tries again.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut look = interval_at(Instant::now() + FIRST, INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = look.tick() => {}
            }
            // A stop does not interrupt a pass: it is short, and should report what it has begun.
            match self.log.expire(self.keep).await {
                Ok(expired) => self.telemetry.expired(expired),
                Err(failure) => {
                    self.telemetry.failed(&failure);
                    continue;
                }
            }
            if let Some(keep) = self.keep_decisions
                && let Err(failure) = self.log.forget_decisions(keep).await
            {
                self.telemetry.failed(&failure);
                continue;
            }
            match self.log.segments(self.keep).await {
                Ok(segments) => self.telemetry.segments(&segments),
                Err(failure) => self.telemetry.failed(&failure),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use async_trait::async_trait;
    use outbox_log::retention::{Expired, ForgetError, Segment};
    use outbox_log::{LogError, RelayName};

    use super::*;

    /// Panics the first time.
    #[derive(Default)]
    struct Faulty {
        looks: AtomicU32,
    }

    #[async_trait]
    impl LogRetention for Faulty {
        async fn segments(&self, _: Duration) -> Result<Vec<Segment>, LogError> {
            Ok(Vec::new())
        }

        async fn expire(&self, _: Duration) -> Result<Expired, LogError> {
            assert!(self.looks.fetch_add(1, Ordering::SeqCst) > 0, "the first look fails");
            Ok(Expired::default())
        }

        async fn forget_decisions(&self, _: Duration) -> Result<u64, LogError> {
            Ok(0)
        }

        async fn forget(&self, _: &RelayName, _: bool) -> Result<(), ForgetError> {
            unreachable!("maintenance forgets nobody")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn maintenance_that_panics_begins_anew() {
        let log = Arc::new(Faulty::default());
        let stop = CancellationToken::new();
        let telemetry = History::new(&RelayName::new("orders").unwrap());
        let maintenance =
            Maintenance { log: Arc::clone(&log) as _, keep: Duration::ZERO, keep_decisions: None, telemetry };
        let running = tokio::spawn(maintenance.keep_running(stop.clone()));
        sleep(2 * FIRST + 3 * INTERVAL).await;
        assert!(log.looks.load(Ordering::SeqCst) >= 2, "nobody looks any more");
        stop.cancel();
        running.await.unwrap();
    }
}
