//! Keeps a relay running, and kills it without warning at the points of the plan.

use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;

use super::FAILURES_MAX;
use crate::demo::child::Child;
use crate::demo::children::{RELAY_COMMAND, RelayEvent, RelayTask};
use crate::demo::error::DemoError;
use crate::demo::plan::KillPlan;
use crate::demo::progress::Progress;

/// Keeps a relay running.
pub(crate) struct Relays<'a> {
    /// What each of them is to do.
    pub(crate) task: RelayTask,
    /// When they are killed.
    pub(crate) kills: &'a [KillPlan],
    /// Where their logs go.
    pub(crate) directory: &'a Path,
    /// What all share.
    pub(crate) progress: Progress,
}

/// A relay and what it has told.
struct Relay {
    child: Child,
    published: u64,
    is_waiting: bool,
    is_leading: bool,
}

/// What happened next.
enum Next {
    Leader(Option<String>),
    Standby(Option<String>),
    Stop,
}

impl Relays<'_> {
    /// Runs until `stop`, then lets the last relay stop in order.
    ///
    /// # Errors
    /// [`DemoError::Process`] when relays end by themselves again and again.
    pub(crate) async fn run(&self, stop: CancellationToken) -> Result<(), DemoError> {
        let (mut started, mut failures, mut killed) = (0, 0, 0);
        let mut leader = self.start(&mut started).await?;
        let mut standby: Option<Relay> = None;
        loop {
            let next = tokio::select! {
                () = stop.cancelled() => Next::Stop,
                line = leader.child.next_line() => Next::Leader(line),
                line = line_of(&mut standby) => Next::Standby(line),
            };
            match next {
                Next::Stop => break,
                Next::Leader(Some(line)) => self.heard(&mut leader, &line, killed),
                Next::Standby(Some(line)) => {
                    if let Some(standby) = &mut standby {
                        self.heard(standby, &line, killed);
                    }
                }
                Next::Leader(None) | Next::Standby(None) => {
                    failures += 1;
                    if failures >= FAILURES_MAX {
                        let log = self.log(started);
                        return Err(DemoError::Process { process: "the relay", failures, log });
                    }
                    if matches!(next, Next::Standby(None)) {
                        standby = None;
                    } else {
                        leader = match standby.take() {
                            Some(standby) => standby,
                            None => self.start(&mut started).await?,
                        };
                    }
                    continue;
                }
            }
            let Some(plan) = self.kills.get(killed) else { continue };
            // A relay that does not lead yet has nothing to lose.
            if !leader.is_leading || self.progress.counts().published < plan.published {
                continue;
            }
            if plan.standby && standby.is_none() {
                standby = Some(self.start(&mut started).await?);
            }
            if plan.standby && !standby.as_ref().is_some_and(|standby| standby.is_waiting) {
                continue;
            }
            killed += 1;
            let successor = if plan.standby { "another one stands by" } else { "starting another one" };
            self.progress.say(&format!("relay killed ({killed} of {}): {successor}", self.kills.len()));
            leader.child.kill().await?;
            self.progress.update(|counts| counts.relay_kills += 1);
            failures = 0;
            leader = match standby.take() {
                Some(standby) => standby,
                None => self.start(&mut started).await?,
            };
        }
        for relay in [Some(leader), standby].into_iter().flatten() {
            relay.child.stop().await?;
        }
        Ok(())
    }

    async fn start(&self, started: &mut u32) -> Result<Relay, DemoError> {
        *started += 1;
        let child = Child::spawn(RELAY_COMMAND, &self.task, &self.log(*started)).await?;
        Ok(Relay { child, published: 0, is_waiting: false, is_leading: false })
    }

    fn log(&self, number: u32) -> PathBuf {
        self.directory.join(format!("relay-{number}.log"))
    }

    fn heard(&self, relay: &mut Relay, line: &str, killed: usize) {
        match RelayEvent::read(line) {
            Some(RelayEvent::Published(count)) => {
                let more = count.saturating_sub(relay.published);
                relay.published = count;
                self.progress.update(|counts| counts.published += more);
            }
            Some(RelayEvent::Leading) if !relay.is_leading => {
                relay.is_leading = true;
                // The first one took nobody's place.
                if killed > 0 {
                    self.progress.update(|counts| counts.relay_restarts += 1);
                }
            }
            Some(RelayEvent::Standby) => relay.is_waiting = true,
            Some(RelayEvent::Leading) | None => {}
        }
    }
}

async fn line_of(relay: &mut Option<Relay>) -> Option<String> {
    match relay {
        Some(relay) => relay.child.next_line().await,
        None => std::future::pending().await,
    }
}
