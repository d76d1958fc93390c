//! One storm from its first process to its verdict.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use checker::{Outcome, SagaState, Verdict};
use harness::faults::{FaultInjector, Faults, PlannedFault, Record, Step, over_time};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::Failure;
use crate::backpressure::{self, Backpressure};
use crate::clock;
use crate::faults::catalogue;
use crate::faults::crash::Crash;
use crate::journal::{self, Received};
use crate::memory::{self, MemorySeries};
use crate::pair::{BrokerKind, Pair};
use crate::phases::Phases;
use crate::progress::Progress;
use crate::read::{self, Facts};
use crate::report::{Counts, PairReport, TEXT_FILE};
use crate::settle::Settling;
use crate::setup::{self, Plot, Programs, RELAY_NAME, Servers};
use crate::stage::{Role, Service, Services, Stage};
use crate::topic_reader;
use crate::verdict::{Ending, StormVerdict};
use crate::waits;

/// The options of a storm.
#[derive(Debug, Clone)]
pub struct Options {
    /// The seed of the plan.
    pub seed: u64,
    /// The time during which faults are injected.
    pub length: Duration,
    /// The pause between two operations of one worker of a producer.
    pub pause: Duration,
    /// The faults to inject, or all faults if the list is empty.
    pub faults: Vec<String>,
    /// Whether the inbox's guard is on.
    pub guarded: bool,
    /// Whether relays publish in transactions.
    pub transactional: bool,
    /// Whether PostgreSQL never analyses its tables.
    pub never_analysed: bool,
    /// Whether databases, topics and queues are kept.
    pub keep: bool,
    /// The parent folder of the storms' own folders.
    pub folder: PathBuf,
    /// The programs to run.
    pub programs: Programs,
    /// The task runner, which stops and starts servers.
    pub xtask: PathBuf,
}

/// Time before the first fault, in which processes start and begin to work.
const WARM_UP: Duration = Duration::from_secs(2);
/// Timeout for an orderly end of a process: longer than a producer waits for an operation.
const STOP: Duration = Duration::from_secs(60);
/// Time for which producers continue after the last fault was healed. It is a part of the storm's
/// length, within these bounds.
const RECOVERY: std::ops::RangeInclusive<Duration> = Duration::from_secs(3)..=Duration::from_secs(20);
/// Maximum time for which the operator tries to requeue dead messages.
const REQUEUE: Duration = Duration::from_secs(120);
/// The interval at which the operator requeues dead messages while faults are injected. Without
/// these requeues, every key of a long storm would end behind a dead message, and the processes
/// would be idle.
const OPERATOR: Duration = Duration::from_secs(30);

/// The word for every fault, including those that are injected only on request.
const ALL: &str = "all";

/// Returns the faults that a storm over this pair uses.
#[must_use]
pub fn faults(pair: Pair, options: &Options) -> Faults<Stage> {
    let mut faults = catalogue(pair);
    if cfg!(feature = "crash-points") {
        faults.push(Box::new(Crash::new(options.transactional)));
    }
    let is_meant = |name| !(is_beyond(pair, name) || options.transactional && brings_back(name));
    faults.retain(|fault| match (fault.kind(), &options.faults[..]) {
        (kind, []) => kind.by_default && is_meant(kind.name),
        (kind, only) => only.iter().any(|wanted| wanted == kind.name || wanted == ALL),
    });
    faults
}

/// Returns the plan of a storm without running it.
#[must_use]
pub fn planned(pair: Pair, options: &Options) -> Vec<PlannedFault<Duration>> {
    let kinds: Vec<_> = faults(pair, options).iter().map(|fault| fault.kind()).collect();
    over_time(pair.mix(options.seed), &kinds, options.length)
}

/// Runs a storm over one pair, until it ends or is stopped.
///
/// # Errors
/// There is no verdict: a server is missing, or something could not be healed or read.
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
        length: options.length,
        pause: options.pause,
        guarded: options.guarded,
        transactional: options.transactional,
        never_analysed: options.never_analysed,
        began,
    };
    std::fs::create_dir_all(&plot.folder)?;
    let staged = async {
        let services = Services::new(options.xtask.clone());
        for service in Service::of(pair) {
            services.start(service).await?;
        }
        setup::stage(&plot, servers, &options.xtask).await
    };
    let staged = staged.await.map_err(|error| explained(pair, &plot.folder, &error));
    if let Err(error) = &staged
        && let Err(unset) = setup::restore(&plot, servers).await
    {
        eprintln!("{pair}: {error}; a setting of the server was not taken back: {unset}");
    }
    let stage = Arc::new(staged?);
    let storm = Storm { plot, servers, options, stage, progress, requeues: Default::default() };
    let outcome = tokio::select! {
        outcome = storm.whole() => outcome,
        () = stop.cancelled() => Err("interrupted".into()),
    };
    for role in [Role::Producer, Role::Worker, Role::Consumer, Role::Relay] {
        storm.stage.processes.stop(role, Duration::ZERO).await;
    }
    if let Err(error) = setup::restore(&storm.plot, servers).await {
        eprintln!("{pair}: a setting of the server was not taken back: {error}");
    }
    if !options.keep
        && let Err(error) = setup::remove(&storm.plot, servers, &storm.stage).await
    {
        eprintln!("{pair}: not everything could be removed: {error}");
    }
    outcome.map_err(|error| explained(pair, &storm.plot.folder, &error))
}

/// Returns the reason why there is no verdict, and writes it into the storm's folder if there is no
/// report.
fn explained(pair: Pair, folder: &Path, error: &Failure) -> Failure {
    let text = format!("{pair}: {error} (see {})", folder.display());
    let report = folder.join(TEXT_FILE);
    if !report.exists()
        && let Err(error) = std::fs::write(&report, &text)
    {
        eprintln!("{}: {error}", report.display());
    }
    text.into()
}

/// Returns whether ElasticMQ itself breaks promises under this fault. Such faults are injected only
/// on request.
///
/// - When it is stopped or killed, it loses messages that it has accepted, even with its files
///   (1.7.1; shown with a client of a few lines, docs/reliability.md).
/// - When it is restarted, it forgets deliveries in flight. Then it hands out a later message of a
///   group before an earlier one that it had handed out already.
fn is_beyond(pair: Pair, fault: &str) -> bool {
    pair.broker.is_sqs() && matches!(fault, "broker-crash" | "broker-restart")
}

/// Returns whether the fault brings a database back to an earlier state. A relay that publishes in
/// transactions then waits for its operator.
fn brings_back(fault: &str) -> bool {
    matches!(fault, "restore" | "promotion" | "sequence-reset")
}

struct Storm<'a> {
    plot: Plot,
    servers: &'a Servers,
    options: &'a Options,
    stage: Arc<Stage>,
    progress: &'a Progress,
    /// The operator's requeues: failed ones, then successful ones.
    requeues: [AtomicUsize; 2],
}

impl Storm<'_> {
    async fn whole(&self) -> Result<PairReport, Failure> {
        let (plot, stage) = (&self.plot, &self.stage);
        let begun = Instant::now();
        let mut phases = Phases::default();
        let follower = topic_reader::follow(plot, stage);
        setup::start(plot, self.servers, stage, &self.options.programs).await?;
        let memory = Arc::new(Mutex::new(MemorySeries::default()));
        let mut watching = JoinSet::new();
        watching.spawn(memory::watch(Arc::clone(stage), Arc::clone(&memory)));
        sleep(WARM_UP).await;
        phases.begin("faults");
        let backpressure = Arc::new(Backpressure::default());
        // A separate task watches, because its checks take long, and faults must be injected on
        // time.
        let mut holding = JoinSet::new();
        holding.spawn(Arc::clone(&backpressure).watch(plot.clone(), Arc::clone(stage)));
        let records = tokio::select! {
            records = self.run() => records?,
            _ = holding.join_next() => return Err("the watch over producers has ended".into()),
            () = self.operate() => return Err("the task of the operator has ended".into()),
        };
        holding.shutdown().await;
        backpressure::release(plot)?;
        phases.begin("recovery");
        self.progress.phase("everything is healed, producers go on");
        let mut settling = Settling::new(plot, stage, self.progress);
        let recovery = (self.options.length / 4).clamp(*RECOVERY.start(), *RECOVERY.end());
        settling.under_load(recovery).await?;
        let mut unruly = Vec::new();
        self.stop(Role::Producer, &mut unruly).await;
        settling.producers_ended();
        let due_by = waits::due_by(clock::now(), plot.length, &records);
        phases.begin("arrival");
        self.progress.phase("waiting until everything has arrived");
        self.requeue().await?;
        let mut ending = settling.until_quiet(due_by).await?;
        // Consumers stop last, because a relay may still publish.
        self.stop(Role::Relay, &mut unruly).await;
        if ending == Ending::Quiet {
            ending = settling.until_quiet(due_by).await?;
        }
        phases.begin("end");
        self.stop(Role::Worker, &mut unruly).await;
        self.stop(Role::Consumer, &mut unruly).await;
        watching.shutdown().await;
        self.progress.phase("checking");
        let pending = read::pending(plot, stage).await?;
        let waiting = topic_reader::waiting(plot, stage).await?;
        let mut topic_reader = topic_reader::read(plot, stage, follower, &waiting).await?;
        let is_unfair = |record: &Record| record.happened && is_beyond(plot.pair, record.fault);
        if records.iter().any(is_unfair) {
            (topic_reader.ordered, topic_reader.complete) = (false, false);
        }
        // This is expected only of the mock cluster. On any other broker, removed messages are a
        // mistake of the operator, and count against it.
        let removed_unread = plot.pair.broker == BrokerKind::MockKafka && has_removed_unread(&plot.folder)?;
        let facts = Facts { settled: ending.is_final() && !removed_unread, topic_read: topic_reader };
        let history = read::history(plot, stage, facts).await?;
        let promises = Verdict::of(&history);
        let analysed = read::analysed(plot, stage).await?;
        let report = PairReport {
            pair: plot.pair,
            seed: self.options.seed,
            seconds: begun.elapsed().as_secs_f64(),
            phases: phases.end(),
            counts: self.count(&history)?,
            ending,
            pending,
            waiting,
            unapplied: read::unapplied(&history),
            unruly,
            held_back: backpressure.lasted(),
            lag: settling.series(),
            memory: std::mem::take(&mut memory.lock().unwrap_or_else(PoisonError::into_inner)),
            promises,
            records,
            transactional: plot.transactional,
            analysed,
            removed_unread,
            folder: plot.folder.clone(),
        };
        report.write_down()?;
        if report.verdict() == StormVerdict::Holds && !self.options.keep {
            std::fs::remove_dir_all(&plot.folder)?;
        } else {
            serde_json::to_writer(std::fs::File::create(plot.file("history.json"))?, &history)?;
        }
        Ok(report)
    }

    async fn stop(&self, role: Role, unruly: &mut Vec<&'static str>) {
        if !self.stage.processes.stop(role, STOP).await {
            unruly.push(role.as_str());
        }
    }

    async fn run(&self) -> Result<Vec<Record>, Failure> {
        let (pair, length) = (self.plot.pair, self.options.length);
        let planned = planned(pair, self.options);
        let injector = FaultInjector::new(faults(pair, self.options));
        self.progress.storm(pair, length);
        let begun = Instant::now();
        let reached = async |at: &Duration| sleep_until(begun + *at).await;
        let watch = |fault, step| {
            if step == Step::Inject {
                self.progress.fault(fault);
            }
        };
        let injecting = async {
            let records = injector.run(&*self.stage, &planned, begun + length, reached, watch).await;
            sleep_until(begun + length).await;
            records
        };
        tokio::select! {
            records = injecting => records,
            () = self.progress.tick() => Err("the clock of the progress bar stopped".into()),
        }
    }

    /// Requeues dead messages now and then.
    async fn operate(&self) {
        loop {
            sleep(OPERATOR).await;
            // Messages that the broker refuses now are requeued the next time.
            let asked = timeout(OPERATOR, self.requeue_once()).await;
            let done = matches!(asked, Ok(Ok(output)) if output.status.success());
            self.requeues[usize::from(done)].fetch_add(1, Relaxed);
        }
    }

    /// Requeues dead messages, as an operator does when the broker accepts larger messages again.
    /// Repeats this until it succeeds or [`REQUEUE`] is over.
    async fn requeue(&self) -> Result<(), Failure> {
        // The server may still be recovering from the last fault.
        let deadline = Instant::now() + REQUEUE;
        loop {
            let output = self.requeue_once().await?;
            if output.status.success() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let why = String::from_utf8_lossy(&output.stderr);
                return Err(format!("dead messages cannot be requeued: {why}").into());
            }
            sleep(Duration::from_secs(1)).await;
        }
    }

    async fn requeue_once(&self) -> std::io::Result<Output> {
        let mut command = Command::new(&self.options.programs.relay);
        command.args(["dead", "requeue", "--all", "--yes", "--actor", "storm"]);
        command.args(["--note", "the broker takes larger messages again"]);
        command.arg("--config").arg(self.plot.file("relay.toml")).args(["--pipeline", RELAY_NAME]);
        command.stdin(Stdio::null()).kill_on_drop(true).output().await
    }

    fn count(&self, history: &checker::History) -> Result<Counts, Failure> {
        let operations = history.operations.iter().flatten();
        let told = |outcome| operations.clone().filter(|operation| operation.outcome == outcome).count();
        let mut deliveries = 0;
        for path in topic_reader::journals(&self.plot, &self.stage) {
            journal::read(&path, |_: Received| deliveries += 1)?;
        }
        let occurrences =
            history.topic_read.as_ref().map_or(&[][..], |topic_reader| &topic_reader.occurrences);
        let mut distinct: Vec<_> = occurrences.iter().filter_map(|occurrence| occurrence.id).collect();
        distinct.sort_unstable();
        distinct.dedup();
        let starts = self.stage.processes.names().iter().map(|name| self.stage.processes.starts(name)).sum();
        let consumers = &history.consumers;
        let effects: usize = consumers.iter().map(|consumer| consumer.effects.iter().flatten().count()).sum();
        let dead =
            consumers.iter().map(|consumer| consumer.dead_letters.iter().flatten().count()).sum::<usize>();
        let sagas = history.sagas.as_ref();
        let runs = sagas.map_or(&[][..], |sagas| &sagas.runs);
        let ended = |state| runs.iter().filter(|run| run.state == state).count();
        let [failed, succeeded] = self.requeues.each_ref().map(|count| count.load(Relaxed));
        let effects_of_sagas = sagas.map_or(&[][..], |sagas| &sagas.effects);
        // Where one reader applies a message under two names, one delivery is enough for both.
        let readers = if self.plot.pair.broker.has_one_reader() { 2 } else { 1 };
        Ok(Counts {
            operations_ok: told(Outcome::Ok),
            operations_failed: told(Outcome::Failed),
            operations_unknown: told(Outcome::Unknown),
            messages: history.outbox.iter().flatten().count(),
            forgotten: history.forgotten.messages.len(),
            parked: history.parked.iter().flatten().count(),
            published: occurrences.len(),
            copies: occurrences.len() - distinct.len(),
            deliveries,
            effects,
            duplicates_suppressed: (deliveries * readers).saturating_sub(effects + dead),
            dead_letters: dead,
            requeues: failed + succeeded,
            requeues_failed: failed,
            process_starts: starts,
            sagas_finished: ended(SagaState::Finished),
            sagas_undone: ended(SagaState::Undone),
            steps: effects_of_sagas.len(),
        })
    }
}

/// Returns whether a consumer logged that records were removed before it had read them.
fn has_removed_unread(folder: &Path) -> Result<bool, Failure> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        if is_log && String::from_utf8_lossy(&std::fs::read(&path)?).contains(brokers::kafka::RECORDS_LOST) {
            return Ok(true);
        }
    }
    Ok(false)
}
