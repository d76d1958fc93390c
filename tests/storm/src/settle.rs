//! From the last healed fault to the end of everything: producers go on for a while, then whatever
//! is on its way arrives.

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

/// For everything to arrive, with progress.
const MOVING_MAX: Duration = Duration::from_secs(1_800);
/// Nothing moved for so long: redeliveries have come.
const STILL: Duration = Duration::from_secs(2);
/// Between two looks, at least.
const LOOK: Duration = Duration::from_millis(500);
/// Looking takes at most this share of the time: a long storm has many messages to look through.
const LOOK_SHARE: u32 = 4;
/// A server may not answer yet.
const PATIENCE: Duration = Duration::from_secs(60);

/// Looks at what is on its way, and keeps what it has seen.
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

    /// Looks on while producers go on.
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

    /// Producers have stopped.
    pub(crate) fn producers_ended(&mut self) {
        self.series.producers_end(self.healed_at.elapsed(), waits::reaction(), waits::relay_pause());
    }

    /// Waits until nothing is on its way, or nothing moves that is. Scheduled messages are waited
    /// for until `due_by`.
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

/// Bytes of all journals of consumers: they grow with each delivery.
fn received_bytes(plot: &Plot, stage: &Stage) -> u64 {
    let size = |path: PathBuf| std::fs::metadata(path).map_or(0, |file| file.len());
    topic_reader::journals(plot, stage).into_iter().map(size).sum()
}
