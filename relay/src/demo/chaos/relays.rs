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
    /// The task of each relay.
    pub(crate) task: RelayTask,
    /// When they are killed.
    pub(crate) kills: &'a [KillPlan],
    /// Where their logs go.
    pub(crate) directory: &'a Path,
    /// The progress that all parts of the run share.
    pub(crate) progress: Progress,
}

/// A relay and what it has told.
struct Relay {
    child: Child,
    published: u64,
    is_waiting: bool,
    is_leading: bool,
}

/// The relays of a run as they stand.
struct Standing {
    leader: Relay,
    standby: Option<Relay>,
    started: u32,
    killed: usize,
    /// Relays that ended by themselves since the last kill.
    failures: u32,
}

/// The next event of the relays.
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
        let leader = self.start(1).await?;
        let mut now = Standing { leader, standby: None, started: 1, killed: 0, failures: 0 };
        loop {
            let next = tokio::select! {
                () = stop.cancelled() => Next::Stop,
                line = now.leader.child.next_line() => Next::Leader(line),
                line = line_of(&mut now.standby) => Next::Standby(line),
            };
            match next {
                Next::Stop => break,
                Next::Leader(Some(line)) => self.heard(&mut now.leader, &line, now.killed),
                Next::Standby(Some(line)) => {
                    if let Some(standby) = &mut now.standby {
                        self.heard(standby, &line, now.killed);
                    }
                }
                Next::Leader(None) => {
                    self.failed(&mut now)?;
                    now = self.replace(now).await?;
                }
                Next::Standby(None) => {
                    self.failed(&mut now)?;
                    now.standby = None;
                }
            }
            now = self.kill_if_due(now).await?;
        }
        for relay in [Some(now.leader), now.standby].into_iter().flatten() {
            relay.child.stop().await?;
        }
        Ok(())
    }

    /// Kills the leader when the plan says so; where another one is to stand by, when it does.
    async fn kill_if_due(&self, mut now: Standing) -> Result<Standing, DemoError> {
        let Some(plan) = self.kills.get(now.killed) else { return Ok(now) };
        // A relay that does not lead yet has nothing to lose.
        if !now.leader.is_leading || self.progress.counts().published < plan.published {
            return Ok(now);
        }
        if plan.standby && now.standby.is_none() {
            now.started += 1;
            now.standby = Some(self.start(now.started).await?);
        }
        if plan.standby && !now.standby.as_ref().is_some_and(|standby| standby.is_waiting) {
            return Ok(now);
        }
        now.killed += 1;
        now.failures = 0;
        let successor = if plan.standby { "another one stands by" } else { "starting another one" };
        self.progress.say(&format!("relay killed ({} of {}): {successor}", now.killed, self.kills.len()));
        now.leader.child.kill().await?;
        self.progress.update(|counts| counts.relay_kills += 1);
        self.replace(now).await
    }

    /// Puts the standby, or a new relay, into the leader's place.
    async fn replace(&self, mut now: Standing) -> Result<Standing, DemoError> {
        now.leader = match now.standby.take() {
            Some(standby) => standby,
            None => {
                now.started += 1;
                self.start(now.started).await?
            }
        };
        Ok(now)
    }

    fn failed(&self, now: &mut Standing) -> Result<(), DemoError> {
        now.failures += 1;
        if now.failures < FAILURES_MAX {
            return Ok(());
        }
        let log = self.log(now.started);
        Err(DemoError::Process { process: "the relay", failures: now.failures, log })
    }

    async fn start(&self, number: u32) -> Result<Relay, DemoError> {
        let child = Child::spawn(RELAY_COMMAND, &self.task, &self.log(number)).await?;
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
