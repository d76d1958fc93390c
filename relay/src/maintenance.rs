//! Keeps an outbox in bounds, beside the engine: history that every relay has passed goes.
//!
//! It needs no lease: the database decides what can go, and any number of processes may ask at once.

use std::sync::Arc;
use std::time::Duration;

use outbox::retention::LogRetention;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use crate::telemetry::History;

/// How often history is looked at. A look costs some 100 buffers and writes nothing.
const INTERVAL: Duration = Duration::from_secs(60);
/// The first look: not in the middle of a start.
const FIRST: Duration = Duration::from_secs(5);

/// The maintenance of one outbox.
pub struct Maintenance {
    /// What is maintained.
    pub log: Arc<dyn LogRetention>,
    /// How long history is kept.
    pub keep: Duration,
    /// Tells what happened.
    pub telemetry: History,
}

impl Maintenance {
    /// Runs until it is stopped. A failure is told, and the next look is the next try.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut look = interval_at(Instant::now() + FIRST, INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = look.tick() => {}
            }
            // Not cut short by a stop: a pass is short, and what it has begun it should tell.
            match self.log.expire(self.keep).await {
                Ok(expired) => self.telemetry.expired(expired),
                Err(failure) => {
                    self.telemetry.failed(&failure);
                    continue;
                }
            }
            match self.log.segments(self.keep).await {
                Ok(segments) => self.telemetry.segments(&segments),
                Err(failure) => self.telemetry.failed(&failure),
            }
        }
    }
}
