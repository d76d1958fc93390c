//! Keeps the lease and stores checkpoints, on its own connection, so that neither waits for a slow read.

use std::time::Duration;

use message::crash_points::reached;
use outbox::log::{Fenced, Lease, LogError, LogKeeper};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};

use crate::crash_points;
use crate::engine::machine::Checkpoint;
use crate::engine::settings::Settings;

/// What the driver tells the keeper.
#[derive(Debug)]
pub(crate) enum Command {
    /// Store this.
    Store(Checkpoint),
    /// Give the lease back and end.
    Release,
}

/// What the keeper reports.
#[derive(Debug)]
pub(crate) enum Report {
    /// The checkpoint is stored.
    Stored,
    /// How long until an exception is due.
    DueIn(Option<Duration>),
}

/// How keeping the lease ended.
#[derive(Debug)]
pub(crate) enum KeeperEnd {
    /// Given back on request, or the driver went away.
    Released,
    /// Another process has taken over.
    Lost,
}

/// The keeper's end of its channels.
pub(crate) struct Keeper {
    pub(crate) log: Box<dyn LogKeeper>,
    pub(crate) lease: Lease,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) reports: mpsc::UnboundedSender<Report>,
    /// Until when this process may publish; pushed on by every renewal.
    pub(crate) trusted_until: watch::Sender<Instant>,
    pub(crate) trust: Duration,
    pub(crate) renew_interval: Duration,
    /// How often to look for exceptions that became due without the relay's doing (an operator's requeue).
    pub(crate) look_interval: Duration,
}

/// How often an operator's requeue or discard is noticed at the latest.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

impl Keeper {
    pub(crate) fn intervals(settings: &Settings) -> (Duration, Duration, Duration) {
        (settings.lease_trust(), settings.renew_interval(), LOOK_INTERVAL)
    }

    /// Runs until the lease is lost or given back, or the database fails.
    pub(crate) async fn run(mut self) -> Result<KeeperEnd, LogError> {
        let mut renewal = tokio::time::interval_at(Instant::now() + self.renew_interval, self.renew_interval);
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut look = tokio::time::interval(self.look_interval);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = renewal.tick() => {
                    let asked_at = Instant::now();
                    match self.log.renew(self.lease.epoch, self.lease.ttl).await? {
                        Fenced::Held => _ = self.trusted_until.send(asked_at + self.trust),
                        Fenced::Lost => return Ok(KeeperEnd::Lost),
                    }
                }
                command = self.commands.recv() => match command {
                    Some(Command::Store(checkpoint)) => {
                        if self.store(checkpoint).await? == Fenced::Lost {
                            return Ok(KeeperEnd::Lost);
                        }
                    }
                    Some(Command::Release) => {
                        return Ok(match self.log.release(self.lease.epoch).await? {
                            Fenced::Held => KeeperEnd::Released,
                            Fenced::Lost => KeeperEnd::Lost,
                        });
                    }
                    None => return Ok(KeeperEnd::Released),
                },
                _ = look.tick() => self.report_due().await?,
            }
        }
    }

    async fn store(&mut self, checkpoint: Checkpoint) -> Result<Fenced, LogError> {
        let Checkpoint { cursor, changes } = checkpoint;
        reached(crash_points::BEFORE_CHECKPOINT);
        let fenced = self.log.checkpoint(self.lease.epoch, &cursor, &changes).await?;
        if fenced == Fenced::Held {
            reached(crash_points::AFTER_CHECKPOINT);
            let _ = self.reports.send(Report::Stored);
            if !changes.is_empty() {
                self.report_due().await?;
            }
        }
        Ok(fenced)
    }

    async fn report_due(&mut self) -> Result<(), LogError> {
        let due_in = self.log.next_due_in().await?;
        let _ = self.reports.send(Report::DueIn(due_in));
        Ok(())
    }
}
