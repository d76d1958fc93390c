//! Queries the database at intervals, for metrics that only the database can provide. It runs
//! beside the engine on its own connection; its interval does not depend on how often metrics are
//! scraped.

use std::sync::Arc;
use std::time::Duration;

use outbox_log::RelayName;
use outbox_log::admin::LogAdmin;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use crate::telemetry::Looks;

/// Default time between two readings of the database: half of the usual scrape interval of
/// Prometheus.
pub const INTERVAL_DEFAULT: Duration = Duration::from_secs(15);

/// Queries the database on behalf of one relay.
#[derive(Clone)]
pub struct Monitor {
    /// The database. Its calls are bounded in time by the options with which it was opened.
    pub log: Arc<dyn LogAdmin>,
    /// The relay.
    pub name: RelayName,
    /// Time between two looks.
    pub interval: Duration,
    /// The gauges to set.
    pub looks: Looks,
}

impl Monitor {
    /// Runs until it is stopped, and restarts after an interval when a bug in this program ends it.
    /// Until then the gauges count as out of date. Cancel-safe.
    pub async fn keep_running(mut self, stop: CancellationToken) {
        loop {
            // In a separate task, so that a panic ends nothing else. Dropping the set aborts the
            // task.
            let mut task = JoinSet::new();
            task.spawn(self.clone().run(stop.clone()));
            let Some(Err(fault)) = task.join_next().await else { return };
            self.looks.ended(&fault);
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep(self.interval) => {}
            }
        }
    }

    /// Runs until it is stopped. A failure is reported, and the next reading tries again.
    /// Cancel-safe: it only reads.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut tick = interval(self.interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = tick.tick() => {}
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.look() => {}
            }
        }
    }

    async fn look(&mut self) {
        let asked = async { Ok((self.log.relay(&self.name).await?, self.log.blocker().await?)) };
        match asked.await {
            Ok((relay, blocker)) => self.looks.seen(relay.as_ref(), blocker.as_ref()),
            Err(failure) => self.looks.failed(&failure),
        }
    }
}
