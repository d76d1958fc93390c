//! Looks at the database now and then, for the metrics that only it knows. Beside the engine, on a
//! connection of its own, at a fixed interval however often metrics are asked for.

use std::sync::Arc;
use std::time::Duration;

use outbox::admin::LogAdmin;
use outbox::log::RelayName;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::telemetry::Looks;

/// How often the database is looked at by default: half of the usual interval of Prometheus.
pub const INTERVAL_DEFAULT: Duration = Duration::from_secs(15);

/// The looks at the database of one relay.
pub struct Monitor {
    /// The database. Its calls are bounded in time by the options with which it was opened.
    pub log: Arc<dyn LogAdmin>,
    /// The relay.
    pub name: RelayName,
    /// Between two looks.
    pub interval: Duration,
    /// The gauges to set.
    pub looks: Looks,
}

impl Monitor {
    /// Looks until it is stopped. A failure is told, and the next look is the next try.
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
