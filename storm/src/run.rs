//! One storm from its first process to its verdict.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use checker::{Outcome, Verdict};
use tokio::process::Command;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::Failure;
use crate::crash::Crash;
use crate::faults::{Fault, catalogue};
use crate::journal::{self, Received};
use crate::pair::Pair;
use crate::plan::{Strike, plan};
use crate::progress::Progress;
use crate::read::{self, Facts, Pending};
use crate::report::{Counts, PairReport};
use crate::setup::{self, Plot, Programs, RELAY_NAME, Servers};
use crate::stage::{Role, Service, Services, Stage};
use crate::tap;
use crate::tempest::{Record, Tempest};

/// What a storm is told.
#[derive(Debug, Clone)]
pub struct Options {
    /// Makes the plan.
    pub seed: u64,
    /// How long faults strike.
    pub length: Duration,
    /// The pause between two operations of one worker of a producer.
    pub pause: Duration,
    /// Only these faults; all, when there is none.
    pub faults: Vec<String>,
    /// Whether the inbox's guard is on.
    pub guarded: bool,
    /// Whether databases, topics and queues stay.
    pub keep: bool,
    /// Below which each storm has a folder.
    pub folder: PathBuf,
    /// Which programs run.
    pub programs: Programs,
    /// The task runner, which stops and starts servers.
    pub xtask: PathBuf,
}

/// For processes to be there and to have done something before the first fault.
const WARM_UP: Duration = Duration::from_secs(2);
/// For an orderly end of a process.
const STOP: Duration = Duration::from_secs(30);
/// For everything to arrive after the storm, without any progress.
const STALLED: Duration = Duration::from_secs(60);
/// For everything to arrive after the storm, with progress.
const QUIET: Duration = Duration::from_secs(1_800);
/// How long an operator tries to have dead messages tried again.
const REQUEUE: Duration = Duration::from_secs(120);
/// Nothing moved for so long: redeliveries have come.
const STILL: Duration = Duration::from_secs(2);

/// The faults that a storm over this pair uses.
#[must_use]
pub fn faults(pair: Pair, only: &[String]) -> Vec<Box<dyn Fault>> {
    let mut faults = catalogue(pair);
    if cfg!(feature = "crash-points") {
        faults.push(Box::new(Crash));
    }
    let is_wanted = |name: &str| match only {
        [] => !is_beyond(pair, name),
        only => only.iter().any(|wanted| wanted == name),
    };
    faults.retain(|fault| is_wanted(fault.name()));
    faults
}

/// The plan of a storm, without running it.
pub async fn planned(pair: Pair, options: &Options) -> Vec<Strike> {
    let kinds = Tempest::new(faults(pair, &options.faults)).kinds().await;
    plan(options.seed, pair, &kinds, options.length)
}

/// Runs a storm over one pair, until it is over or asked to stop.
///
/// # Errors
/// There is no verdict: a server is not there, or something could not be healed or read.
pub async fn run(
    pair: Pair,
    servers: &Servers,
    options: &Options,
    progress: &Progress,
    stop: &CancellationToken,
) -> Result<PairReport, Failure> {
    let began = time::OffsetDateTime::now_utc().unix_timestamp();
    let name = format!("storm-{:06x}", rand::random::<u32>() & 0xff_ffff);
    let plot = Plot {
        pair,
        folder: options.folder.join(format!("{}-{name}", pair.slug())),
        name,
        pause: options.pause,
        guarded: options.guarded,
        began,
    };
    std::fs::create_dir_all(&plot.folder)?;
    let services = Services::new(options.xtask.clone());
    for service in Service::of(pair) {
        services.start(service).await?;
    }
    let stage = Arc::new(setup::stage(&plot, servers, &options.xtask).await?);
    let storm = Storm { plot, servers, options, stage, progress };
    let outcome = tokio::select! {
        outcome = storm.whole() => outcome,
        () = stop.cancelled() => Err("interrupted".into()),
    };
    for role in [Role::Producer, Role::Consumer, Role::Relay] {
        storm.stage.processes.stop(role, Duration::ZERO).await;
    }
    if !options.keep
        && let Err(error) = setup::remove(&storm.plot, servers, &storm.stage).await
    {
        eprintln!("{pair}: not everything could be removed: {error}");
    }
    outcome.map_err(|error| format!("{pair}: {error} (see {})", storm.plot.folder.display()).into())
}

/// What ElasticMQ itself breaks, so that it can be held against nobody. Unless it is asked for, such a fault does not strike.
///
/// - Stopped or killed, it forgets messages that it has accepted, also with its files (1.7.1, a client of a few lines, docs/reliability.md).
/// - Started anew, it forgets what was in flight, and then hands out a later message of a group before an earlier one
///   that it had handed out already.
fn is_beyond(pair: Pair, fault: &str) -> bool {
    pair.broker.is_sqs() && matches!(fault, "broker-crash" | "broker-restart")
}

struct Storm<'a> {
    plot: Plot,
    servers: &'a Servers,
    options: &'a Options,
    stage: Arc<Stage>,
    progress: &'a Progress,
}

impl Storm<'_> {
    async fn whole(&self) -> Result<PairReport, Failure> {
        let (plot, stage) = (&self.plot, &self.stage);
        let begun = Instant::now();
        let follower = tap::follow(plot, stage);
        setup::start(plot, self.servers, stage, &self.options.programs).await?;
        sleep(WARM_UP).await;
        let records = self.rage().await?;
        self.progress.phase("waiting until everything has arrived");
        let in_order = stage.processes.stop(Role::Producer, STOP).await;
        let pending = self.settle().await?;
        let mut unruly = if in_order { Vec::new() } else { vec!["producer"] };
        for role in [Role::Consumer, Role::Relay] {
            if !stage.processes.stop(role, STOP).await {
                unruly.push(role.as_str());
            }
        }
        self.progress.phase("checking");
        let mut facts =
            Facts { leaks: read::leaks(stage).await?, tap: tap::read(plot, stage, follower).await? };
        let is_unfair = |record: &Record| record.happened && is_beyond(plot.pair, record.fault);
        if records.iter().any(is_unfair) {
            (facts.tap.ordered, facts.tap.complete) = (false, false);
        }
        let history = read::history(plot, stage, facts).await?;
        let verdict = Verdict::of(&history);
        let counts = self.count(&history)?;
        let report = PairReport {
            pair: plot.pair,
            seed: self.options.seed,
            seconds: begun.elapsed().as_secs_f64(),
            counts,
            pending,
            unruly,
            verdict,
            records,
            folder: plot.folder.clone(),
        };
        report.write_down()?;
        if report.holds() && !self.options.keep {
            std::fs::remove_dir_all(&plot.folder)?;
        } else {
            serde_json::to_writer(std::fs::File::create(plot.file("history.json"))?, &history)?;
        }
        Ok(report)
    }

    async fn rage(&self) -> Result<Vec<Record>, Failure> {
        let tempest = Tempest::new(faults(self.plot.pair, &self.options.faults));
        let length = self.options.length;
        let strikes = plan(self.options.seed, self.plot.pair, &tempest.kinds().await, length);
        self.progress.storm(self.plot.pair, length);
        let ticking = self.progress.tick();
        let raging = tempest.rage(&self.stage, &strikes, length, |fault| self.progress.fault(fault));
        tokio::select! {
            records = raging => records,
            () = ticking => Err("the clock of the progress bar stopped".into()),
        }
    }

    /// Tries dead messages again, and waits until nothing is on its way any more: as long as there is progress.
    async fn settle(&self) -> Result<Pending, Failure> {
        self.requeue().await?;
        let begun = Instant::now();
        let (mut last, mut received) = (Pending::default(), 0);
        let mut changed_at = Instant::now();
        loop {
            let pending = read::pending(&self.plot, &self.stage).await?;
            let now_received = self.received()?;
            if pending != last || now_received != received {
                (last, received, changed_at) = (pending, now_received, Instant::now());
                self.progress.pending(pending);
            }
            let still = changed_at.elapsed();
            if (pending.is_quiet() && still >= STILL) || still >= STALLED {
                return Ok(pending);
            }
            // What still moves is neither lost nor done: there is no verdict.
            if begun.elapsed() >= QUIET {
                let Pending { moving, undecided, .. } = pending;
                return Err(format!(
                    "after {QUIET:?} there is no end: {moving} messages wait beside the log, {undecided} effects are \
                     missing, and deliveries go on; give a slow machine a lower --rate"
                )
                .into());
            }
            sleep(Duration::from_millis(500)).await;
        }
    }

    /// As an operator does when the broker takes larger messages again.
    async fn requeue(&self) -> Result<(), Failure> {
        let mut command = Command::new(&self.options.programs.relay);
        command.args([
            "dead",
            "requeue",
            "--all",
            "--yes",
            "--actor",
            "storm",
            "--note",
            "the storm is over",
        ]);
        command.arg("--config").arg(self.plot.file("relay.toml")).args(["--pipeline", RELAY_NAME]);
        command.stdin(Stdio::null());
        // The server may still be recovering from what struck last.
        let deadline = Instant::now() + REQUEUE;
        loop {
            let output = command.output().await?;
            if output.status.success() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let why = String::from_utf8_lossy(&output.stderr);
                return Err(format!("dead messages cannot be tried again: {why}").into());
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Bytes of all journals of consumers: they grow with each delivery.
    fn received(&self) -> Result<u64, Failure> {
        let size = |path: PathBuf| std::fs::metadata(path).map_or(0, |file| file.len());
        Ok(tap::journals(&self.plot, &self.stage).into_iter().map(size).sum())
    }

    fn count(&self, history: &checker::History) -> Result<Counts, Failure> {
        let operations = history.operations.iter().flatten();
        let told = |outcome| operations.clone().filter(|operation| operation.outcome == outcome).count();
        let mut deliveries = 0;
        for path in tap::journals(&self.plot, &self.stage) {
            journal::read(&path, |_: Received| deliveries += 1)?;
        }
        let occurrences = history.tap.as_ref().map_or(&[][..], |tap| &tap.occurrences);
        let mut distinct: Vec<_> = occurrences.iter().filter_map(|occurrence| occurrence.id).collect();
        distinct.sort_unstable();
        distinct.dedup();
        let starts = self.stage.processes.names().iter().map(|name| self.stage.processes.starts(name)).sum();
        let consumers = &history.consumers;
        let effects: usize = consumers.iter().map(|consumer| consumer.effects.iter().flatten().count()).sum();
        let dead =
            consumers.iter().map(|consumer| consumer.dead_letters.iter().flatten().count()).sum::<usize>();
        // Where one reader applies a message under two names, a delivery is one for both.
        let readers = if self.plot.pair.broker.is_sqs() { 2 } else { 1 };
        Ok(Counts {
            operations_ok: told(Outcome::Ok),
            operations_failed: told(Outcome::Failed),
            operations_unknown: told(Outcome::Unknown),
            messages: history.outbox.iter().flatten().count(),
            parked: history.parked.iter().flatten().count(),
            published: occurrences.len(),
            copies: occurrences.len() - distinct.len(),
            deliveries,
            effects,
            duplicates_suppressed: (deliveries * readers).saturating_sub(effects + dead),
            dead_letters: dead,
            process_starts: starts,
        })
    }
}
