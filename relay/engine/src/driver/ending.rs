//! Drains, releases the lease, and determines why leading ended.

use std::time::Duration;

use outbox_log::LogError;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::storing::committed;
use super::{Driver, Ended};
use crate::checkpointer::{CheckpointerEnd, Command};
use crate::transactions::Commits;

/// How long to wait for a commit in progress after the time to drain is over.
const COMMIT_GRACE: Duration = Duration::from_secs(1);

impl Driver {
    pub(super) fn begin_draining(&mut self) {
        self.draining = Some(Instant::now() + self.settings.shutdown_grace);
        self.telemetry.draining(self.machine.in_flight_len());
    }

    pub(super) fn drained(&self) -> bool {
        let is_committed = || !self.storing && self.commits.as_ref().is_none_or(Commits::is_idle);
        self.draining.is_some()
            && (self.machine.in_flight_len() == 0 && (self.commits.is_none() || is_committed())
                || !self.broker_session.is_up())
    }

    /// Stores the settled entries and releases the lease.
    pub(super) async fn finish(
        &mut self,
        checkpointer: &mut AbortOnDropHandle<Result<CheckpointerEnd, LogError>>,
    ) -> Ended {
        self.machine.bring_all_forward();
        self.emit();
        self.telemetry.unrouted(&self.broker_session.take_unrouted());
        if self.commits.as_ref().is_some_and(Commits::has_closed) {
            self.storing = false;
        }
        if self.commits.as_ref().is_some_and(Commits::is_committing) {
            // Its mark informs the successor, so a short wait is enough.
            if let Ok(Ok(checkpoint)) = tokio::time::timeout(COMMIT_GRACE, committed(&mut self.commits)).await
            {
                self.storing = self.commands.try_send(Command::Store(checkpoint)).is_ok();
            }
        }
        loop {
            if self.commits.is_none() {
                self.store();
            }
            if !self.storing {
                break;
            }
            match self.reports.recv().await {
                Some(report) => self.on_report(&report),
                None => break,
            }
        }
        let _ = self.commands.send(Command::Release).await;
        ended_by_checkpointer(checkpointer.await)
    }
}

pub(super) fn ended_by_checkpointer(ended: Joined<CheckpointerEnd>) -> Ended {
    match ended {
        Ok(Ok(CheckpointerEnd::Released)) => Ended::Stopped,
        Ok(Ok(CheckpointerEnd::Lost)) => Ended::LeaseLost,
        Ok(Err(error)) => Ended::Failed(error),
        Err(panic) => crashed(&panic),
    }
}

type Joined<T> = Result<Result<T, LogError>, tokio::task::JoinError>;

pub(super) fn ended_by_reader(ended: Joined<()>) -> Ended {
    match ended {
        Ok(Ok(())) => Ended::Stopped,
        Ok(Err(error)) => Ended::Failed(error),
        Err(panic) => crashed(&panic),
    }
}

fn crashed(error: &tokio::task::JoinError) -> Ended {
    Ended::Failed(LogError::Unavailable {
        reason: format!("a task of the relay ended unexpectedly: {error}"),
        source: None,
    })
}
