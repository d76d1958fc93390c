//! Stores checkpoints: in the database alone, or first with a broker transaction.

use outbox_log::{ExceptionChange, ExceptionState, LogError};
use tokio::time::Instant;

use super::{Driver, Ended};
use crate::checkpointer::{Command, Report};
use crate::machine::Checkpoint;
use crate::silence::IMPATIENCE;
use crate::transactions::Commits;

impl Driver {
    pub(super) fn store(&mut self) {
        if let Some(commits) = &mut self.commits {
            // The checkpoint is committed with a transaction, and goes to the database afterwards.
            return commits.want();
        }
        if self.storing {
            return;
        }
        if let Some(checkpoint) = self.machine.checkpoint() {
            self.stores_due = has_due(&checkpoint);
            // There is room in the channel. If the checkpointer has ended, the driver ends anyway.
            self.storing = self.commands.try_send(Command::Store(checkpoint)).is_ok();
        }
    }

    /// Stores what the messages of a trial have changed, as soon as all of them are answered: the
    /// others wait for it.
    pub(super) fn try_storing(&mut self) {
        let waits = self.trial.as_ref().is_some_and(|trial| trial.left() == 0);
        if !waits || self.storing || self.machine.in_flight_len() > 0 {
            return;
        }
        self.store();
        if let Some(trial) = self.trial.as_mut().filter(|_| !self.storing) {
            trial.came_back();
        }
    }

    /// Permits other messages in a trial that wait for one without an answer. Silence shows only
    /// while others are answered.
    pub(super) fn prolong_trial(&mut self) {
        if let Some(trial) = self.trial.as_mut().filter(|_| !self.storing) {
            trial.waited(self.began_at.elapsed(), self.settings.silent_after / IMPATIENCE);
        }
    }

    /// Closes the transaction of the confirmed messages, once every message was answered and the
    /// previous checkpoint is stored. If closing fails, returns how the term ends.
    pub(super) fn commit(&mut self) -> Option<Ended> {
        let commits = self.commits.as_mut()?;
        let is_up = self.broker_session.is_up();
        if commits.is_confirmed() && !is_up {
            // Memory is ahead of the broker.
            return Some(Ended::Failed(commits.broken()));
        }
        let may_close = commits.is_due() && !self.storing && is_up && self.machine.in_flight_len() == 0;
        if may_close {
            match self.machine.transaction_checkpoint(commits.is_confirmed()) {
                Some(content) => {
                    self.stores_due = has_due(&content.checkpoint);
                    self.storing = true;
                    if let Err(error) = commits.close(content, &self.host) {
                        return Some(Ended::Failed(error));
                    }
                }
                None => commits.nothing(),
            }
        }
        if commits.wants_flush() {
            commits.flush_began(self.commands.try_send(Command::Flush).is_ok());
        }
        if may_close {
            // The next batch is submitted while this one is being committed.
            self.act();
        }
        None
    }

    pub(super) fn on_report(&mut self, report: &Report) {
        match report {
            Report::Stored => self.on_stored(),
            Report::Flushed => {
                if let Some(commits) = &mut self.commits {
                    commits.flushed(&self.host);
                }
            }
        }
    }

    fn on_stored(&mut self) {
        self.storing = false;
        self.trial.take_if(|trial| trial.stored(self.settings.page_entries));
        if std::mem::take(&mut self.stores_due) {
            self.due.look(Instant::now());
        }
        self.machine.checkpointed();
        self.telemetry.checkpointed();
    }
}

fn has_due(checkpoint: &Checkpoint) -> bool {
    checkpoint.changes.iter().any(|change| match change {
        ExceptionChange::Park(parked) => {
            matches!(parked.state, ExceptionState::Scheduled | ExceptionState::Retrying)
        }
        ExceptionChange::Resolve(_) => false,
    })
}

/// Waits for the next commit and returns its checkpoint. Pending when there are no transactions.
pub(super) async fn committed(commits: &mut Option<Commits>) -> Result<Checkpoint, LogError> {
    match commits {
        Some(commits) => commits.committed().await,
        None => std::future::pending().await,
    }
}
