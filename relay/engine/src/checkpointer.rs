//! Keeps the lease and stores checkpoints, on its own connection, so that neither waits for a slow
//! read.

use std::time::Duration;

use message::crash_points::reached;
use outbox_log::{BrokerTrouble, CheckpointStore, Fenced, Lease, LogError};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};

use crate::crash_points;
use crate::machine::Checkpoint;
use crate::options::EngineOptions;

/// A command of the driver to the checkpointer.
#[derive(Debug)]
pub(crate) enum Command {
    /// Store this checkpoint.
    Store(Checkpoint),
    /// Ensure that everything read so far survives a crash of the database.
    Flush,
    /// Release the lease and end.
    Release,
}

/// A completed command.
#[derive(Debug)]
pub(crate) enum Report {
    /// The checkpoint is stored.
    Stored,
    /// Everything that was read before the request survives a crash of the database.
    Flushed,
}

/// The reason why the checkpointer ended.
#[derive(Debug)]
pub(crate) enum CheckpointerEnd {
    /// Released on request, or because the driver has ended.
    Released,
    /// Another process has taken over.
    Lost,
}

/// The checkpointer's end of its channels.
pub(crate) struct Checkpointer {
    pub(crate) log: Box<dyn CheckpointStore>,
    pub(crate) lease: Lease,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) reports: mpsc::UnboundedSender<Report>,
    /// The error that keeps the relay from its broker, for operators.
    pub(crate) trouble: watch::Receiver<Option<BrokerTrouble>>,
    /// The time until which this process may publish; extended by every renewal.
    pub(crate) trusted_until: watch::Sender<Instant>,
    pub(crate) trust: Duration,
    pub(crate) renew_interval: Duration,
}

impl Checkpointer {
    pub(crate) fn intervals(settings: &EngineOptions) -> (Duration, Duration) {
        (settings.lease_trust(), settings.renew_interval())
    }

    /// Runs until the lease is lost or released, or the database fails. Checkpoints are bounded, so
    /// a renewal waits for at most one of them. A separate connection would not help the renewal:
    /// both write the relay's row.
    pub(crate) async fn run(mut self) -> Result<CheckpointerEnd, LogError> {
        let mut renewal = tokio::time::interval_at(Instant::now() + self.renew_interval, self.renew_interval);
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = renewal.tick() => {
                    if self.renew().await? == Fenced::Lost {
                        return Ok(CheckpointerEnd::Lost);
                    }
                }
                // This changes at most as often as the relay connects to the broker.
                Ok(()) = self.trouble.changed() => {
                    let trouble = self.trouble.borrow_and_update().clone();
                    self.log.note_trouble(self.lease.epoch, trouble).await?;
                }
                command = self.commands.recv() => match command {
                    Some(Command::Store(checkpoint)) => {
                        if self.store(checkpoint).await? == Fenced::Lost {
                            return Ok(CheckpointerEnd::Lost);
                        }
                    }
                    Some(Command::Flush) => {
                        if self.renew().await? == Fenced::Lost {
                            return Ok(CheckpointerEnd::Lost);
                        }
                        let _ = self.reports.send(Report::Flushed);
                    }
                    Some(Command::Release) => {
                        return Ok(match self.log.release(self.lease.epoch).await? {
                            Fenced::Held => CheckpointerEnd::Released,
                            Fenced::Lost => CheckpointerEnd::Lost,
                        });
                    }
                    None => return Ok(CheckpointerEnd::Released),
                },
            }
        }
    }

    async fn renew(&mut self) -> Result<Fenced, LogError> {
        let asked_at = Instant::now();
        let fenced = self.log.renew(self.lease.epoch, self.lease.ttl).await?;
        if fenced == Fenced::Held {
            let _ = self.trusted_until.send(asked_at + self.trust);
        }
        Ok(fenced)
    }

    async fn store(&mut self, checkpoint: Checkpoint) -> Result<Fenced, LogError> {
        let Checkpoint { cursor, changes } = checkpoint;
        reached(crash_points::BEFORE_CHECKPOINT);
        let fenced = self.log.checkpoint(self.lease.epoch, &cursor, &changes).await?;
        if fenced == Fenced::Held {
            reached(crash_points::AFTER_CHECKPOINT);
            let _ = self.reports.send(Report::Stored);
        }
        Ok(fenced)
    }
}
