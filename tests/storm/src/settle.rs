//! The time from the last healed fault to the end: producers continue for a while, then everything
//! in flight arrives.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::Failure;
use crate::clock;
use crate::lag::{LagSample, LagSeries};
use crate::progress::Progress;
use crate::read::{self, Pending};
use crate::setup::Plot;
use crate::stage::Stage;
use crate::topic_reader;
use crate::verdict::Ending;
use crate::waits;

/// Timeout for everything to arrive, as long as any of it moves.
const MOVING_MAX: Duration = Duration::from_secs(1_800);
/// Time without movement after which the end is quiet. Redeliveries have arrived by then.
const STILL: Duration = Duration::from_secs(2);
/// Minimum time between two checks.
const LOOK: Duration = Duration::from_millis(500);
/// Pause after a check, as a multiple of its duration, so that checks use at most a fifth of the
/// time. A long storm has many messages to check.
const LOOK_SHARE: u32 = 4;
/// Timeout for a server that does not answer yet.
const PATIENCE: Duration = Duration::from_secs(60);

/// Watches the messages in flight, and keeps its samples.
pub(crate) struct Settling<'a> {
    plot: &'a Plot,
    stage: &'a Stage,
    progress: &'a Progress,
    healed_at: Instant,
    series: LagSeries,
}

impl<'a> Settling<'a> {
    /// Begins right after the last fault was healed.
    pub(crate) fn new(plot: &'a Plot, stage: &'a Stage, progress: &'a Progress) -> Self {
        Self { plot, stage, progress, healed_at: Instant::now(), series: LagSeries::default() }
    }

    /// Watches while producers continue.
    ///
    /// # Errors
    /// A server does not answer.
    pub(crate) async fn under_load(&mut self, length: Duration) -> Result<(), Failure> {
        while self.healed_at.elapsed() < length {
            let began = Instant::now();
            self.look().await?;
            sleep(LOOK.max(began.elapsed() * LOOK_SHARE)).await;
        }
        Ok(())
    }

    /// Records that producers have stopped.
    pub(crate) fn producers_ended(&mut self) {
        self.series.producers_end(self.healed_at.elapsed(), waits::reaction(), waits::relay_pause());
    }

    /// Waits until nothing is in flight, or everything in flight has stopped moving. It waits for
    /// scheduled messages until `due_by`.
    ///
    /// # Errors
    /// A server does not answer.
    pub(crate) async fn until_quiet(&mut self, due_by: u64) -> Result<Ending, Failure> {
        let begun = Instant::now();
        let (mut last, mut received) = (Pending::default(), 0);
        let mut changed_at = Instant::now();
        loop {
            let began = Instant::now();
            let pending = self.look().await?;
            let now_received = received_bytes(self.plot, self.stage);
            if pending != last || now_received != received {
                (last, received, changed_at) = (pending, now_received, Instant::now());
                self.progress.pending(pending);
            }
            let still = changed_at.elapsed();
            if pending.is_quiet() && still >= STILL {
                return Ok(Ending::Quiet);
            }
            if still >= waits::stalled() && clock::now() >= due_by {
                return Ok(Ending::Stalled);
            }
            if begun.elapsed() >= MOVING_MAX {
                return Ok(Ending::Moving);
            }
            sleep(LOOK.max(began.elapsed() * LOOK_SHARE)).await;
        }
    }

    /// Returns the samples.
    pub(crate) fn series(self) -> LagSeries {
        self.series
    }

    async fn look(&mut self) -> Result<Pending, Failure> {
        let deadline = Instant::now() + PATIENCE;
        let pending = loop {
            match read::pending(self.plot, self.stage).await {
                Ok(pending) => break pending,
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => sleep(LOOK).await,
            }
        };
        self.series.samples.push(LagSample { at: self.healed_at.elapsed(), pending });
        Ok(pending)
    }
}

/// Returns the total size of all consumers' journals in bytes. It grows with each delivery.
fn received_bytes(plot: &Plot, stage: &Stage) -> u64 {
    let size = |path: PathBuf| std::fs::metadata(path).map_or(0, |file| file.len());
    topic_reader::journals(plot, stage).into_iter().map(size).sum()
}
