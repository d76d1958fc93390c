//! Keeps a consumer running, which crashes at the points of the plan and once starts again from older offsets.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use tokio_util::sync::CancellationToken;

use super::FAILURES_MAX;
use crate::demo::child::Child;
use crate::demo::children::{CONSUMER_COMMAND, ConsumerTask};
use crate::demo::error::DemoError;
use crate::demo::plain;
use crate::demo::plan::{CrashPlan, CrashPoint, Plan};
use crate::demo::progress::Progress;
use crate::demo::target::{BrokerSpec, DatabaseSpec, Pool};

/// SIGABRT: what `abort` ends a process with on every Unix.
const ABORTED: i32 = 6;

/// Keeps a consumer running.
pub(crate) struct Consumers<'a> {
    /// Where effects are applied.
    pub(crate) database: DatabaseSpec,
    /// The same, for counting.
    pub(crate) effects: &'a Pool,
    /// For the consumer.
    pub(crate) broker: BrokerSpec,
    /// For the demo's own client.
    pub(crate) direct: &'a BrokerSpec,
    /// Where it crashes.
    pub(crate) plan: &'a Plan,
    /// Whether the inbox's guard is on.
    pub(crate) guarded: bool,
    /// Where logs and journals go.
    pub(crate) directory: &'a Path,
    /// The progress that all parts of the run share.
    pub(crate) progress: Progress,
}

impl Consumers<'_> {
    /// Runs until `stop`, then lets the last consumer stop in order. Answers how many were started: each has a
    /// [journal](Self::journals).
    ///
    /// # Errors
    /// [`DemoError::Process`] when consumers end by themselves again and again.
    pub(crate) async fn run(&self, stop: CancellationToken) -> Result<u32, DemoError> {
        let (mut started, mut failures, mut crashed) = (0, 0, 0);
        loop {
            started += 1;
            self.progress.update(|counts| counts.consumers = started);
            let crash = match self.plan.crashes.get(crashed) {
                Some(crash) => Some(self.counted_from_now(*crash).await?),
                None => None,
            };
            let mut child = self.start(started, crash).await?;
            let status = tokio::select! {
                () = stop.cancelled() => {
                    child.stop().await?;
                    return Ok(started);
                }
                status = child.ended() => status?,
            };
            match crash {
                Some(crash) if has_aborted(status) => {
                    crashed += 1;
                    failures = 0;
                    self.crashed(crashed, crash).await?;
                }
                _ => {
                    failures += 1;
                    if failures >= FAILURES_MAX {
                        let log = log(self.directory, started);
                        return Err(DemoError::Process { process: "the consumer", failures, log });
                    }
                }
            }
        }
    }

    /// The same place, counted from the effects that there are now.
    async fn counted_from_now(&self, crash: CrashPlan) -> Result<CrashPlan, DemoError> {
        let effects = self.effects.count("SELECT count(*) FROM demo_effect").await;
        let effects = effects.map_err(DemoError::during("count the effects"))?;
        Ok(CrashPlan { effects: crash.effects.saturating_sub(effects).max(1), point: crash.point })
    }

    async fn start(&self, number: u32, crash: Option<CrashPlan>) -> Result<Child, DemoError> {
        let task = ConsumerTask {
            database: self.database.clone(),
            broker: self.broker.clone(),
            journal: journal(self.directory, number),
            crash,
            guarded: self.guarded,
        };
        Child::spawn(CONSUMER_COMMAND, &task, &log(self.directory, number)).await
    }

    async fn crashed(&self, crashed: usize, crash: CrashPlan) -> Result<(), DemoError> {
        let place = match crash.point {
            CrashPoint::BeforeCommit => "between effect and commit",
            CrashPoint::BeforeAck => "between commit and acknowledgement",
        };
        let of = self.plan.crashes.len();
        self.progress.say(&format!("consumer crashed {place} ({crashed} of {of}): starting another one"));
        self.progress.update(|counts| counts.consumer_crashes += 1);
        if crashed == self.plan.rewind_after + 1 {
            let again = plain::rewind(self.direct).await?;
            if again > 0 {
                self.progress.say(&format!("consumer moved back by {again} messages"));
                self.progress.update(|counts| counts.rewound += again);
            }
        }
        Ok(())
    }

    /// The journals of so many consumers.
    pub(crate) fn journals(directory: &Path, started: u32) -> Vec<PathBuf> {
        (1..=started).map(|number| journal(directory, number)).collect()
    }
}

fn has_aborted(status: ExitStatus) -> bool {
    status.signal() == Some(ABORTED)
}

fn journal(directory: &Path, number: u32) -> PathBuf {
    directory.join(format!("consumer-{number}.journal"))
}

fn log(directory: &Path, number: u32) -> PathBuf {
    directory.join(format!("consumer-{number}.log"))
}
