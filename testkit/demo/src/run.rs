//! One run from its seed to its report.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use checker::TopicRead;
use harness::processes::Processes;
use message::Source;
use outbox_log::LogOptions;
use outbox_log::admin::LogAdmin;

use crate::args::Args;
use crate::check::{self, Journal, Sources};
use crate::consumer::{self, ConsumerTask};
use crate::error::DemoError;
use crate::faults::{self, Stage};
use crate::plan::{CrashPoint, Plan};
use crate::progress::{Counts, Progress};
use crate::report::Report;
use crate::target::{Broker, Databases, Outage};
use crate::verdict::Verdict;
use crate::{again, plain, processes, producer};

/// Interval at which effects are counted and relays checked.
const COUNT_INTERVAL: Duration = Duration::from_millis(50);
/// Time without progress after which a run is checked in its current state.
const STALLED: Duration = Duration::from_secs(30);
/// Time without a delivery after which the consumer has received everything.
const QUIET: Duration = Duration::from_millis(600);

/// A run with everything that it needs.
struct Run<'a> {
    args: &'a Args,
    plan: Arc<Plan>,
    databases: &'a Databases,
    broker: &'a Broker,
    directory: &'a Path,
    processes: Processes,
    progress: Progress,
    begun_at: Instant,
}

/// Runs the demo. Unless `quiet` is set, it reports its progress on standard error.
///
/// On an interrupt (SIGINT, SIGTERM) it kills its processes and removes everything that it created.
///
/// # Errors
/// [`DemoError`] if there is no result.
pub async fn run(args: Args, quiet: bool) -> Result<Report, DemoError> {
    let begun_at = Instant::now();
    let seed = args.seed.unwrap_or_else(|| rand::random::<u32>().into());
    let plan = Arc::new(Plan::new(seed, args.messages));
    let name = format!("{:08x}", rand::random::<u32>());
    let directory = tempfile::Builder::new().prefix("relay-demo-").tempdir();
    let mut directory = directory.map_err(DemoError::during("make a temporary directory"))?;
    let progress = Progress::new(args.messages, quiet);
    let databases = Databases::create(args.database.as_deref(), directory.path(), &name).await?;
    let broker = match Broker::create(args.broker.as_deref(), &name).await {
        Ok(broker) => broker,
        Err(error) => {
            tell_leftovers(databases.remove().await);
            return Err(error);
        }
    };
    let Args { messages, .. } = args;
    progress.say(&format!("{messages} orders, seed {seed}: {} × {}", databases.name, broker.name));
    let run = Run {
        args: &args,
        plan,
        databases: &databases,
        broker: &broker,
        directory: directory.path(),
        processes: Processes::default(),
        progress: progress.clone(),
        begun_at,
    };
    let outcome = Box::pin(run.supervised()).await;
    progress.finish();
    let is_fine =
        outcome.as_ref().map_or_else(|error| matches!(error, DemoError::Interrupted), Report::holds);
    if args.keep || !is_fine {
        directory.disable_cleanup(true);
        let _ = writeln!(std::io::stderr(), "logs and files of this run: {}", directory.path().display());
    }
    if !args.keep {
        tell_leftovers(broker.remove().await);
        tell_leftovers(databases.remove().await);
    }
    outcome
}

/// Reports a failed removal. The result of the run counts even then.
fn tell_leftovers(removed: Result<(), DemoError>) {
    if let Err(error) = removed {
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(std::io::stderr(), "{error}: {cause}");
    }
}

impl Run<'_> {
    /// Runs everything until the time limit or an interrupt.
    async fn supervised(&self) -> Result<Report, DemoError> {
        let limit = self.args.time_limit();
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
            .map_err(DemoError::during("listen for signals"))?;
        tokio::select! {
            done = tokio::time::timeout(limit, self.whole()) => done.unwrap_or_else(|_| {
                Err(DemoError::TimeLimit {
                    seconds: limit.as_secs(),
                    state: self.progress.counts().to_string(),
                    logs: self.directory.to_owned(),
                })
            }),
            _ = tokio::signal::ctrl_c() => Err(DemoError::Interrupted),
            _ = terminate.recv() => Err(DemoError::Interrupted),
        }
    }

    async fn whole(&self) -> Result<Report, DemoError> {
        let mut notes = self.notes();
        let (databases, broker, directory) = (self.databases, self.broker, self.directory);
        processes::start_relays(&self.processes, directory, &databases.producer, &broker.spec).await?;
        processes::start_consumer(&self.processes, directory, &self.task()).await?;
        tokio::select! {
            done = self.work() => done?,
            error = self.watch() => return Err(error),
            () = self.stalled() => notes.push(format!(
                "nothing happened for {} s, so the state at that time was checked", STALLED.as_secs())),
        }
        processes::stop(&self.processes).await;
        self.progress.say("checking");
        self.check(notes).await
    }

    fn task(&self) -> ConsumerTask {
        ConsumerTask {
            database: self.databases.consumer.clone(),
            broker: self.broker.spec.clone(),
            direct: self.broker.direct.clone(),
            directory: self.directory.to_owned(),
            crashes: self.plan.crashes.clone(),
            rewind_after: self.plan.rewind_after + 1,
            guarded: !self.args.without_inbox_guard,
        }
    }

    /// Runs producers, faults and copies until all messages have taken effect and all copies have
    /// arrived.
    async fn work(&self) -> Result<(), DemoError> {
        let (databases, broker, progress) = (self.databases, self.broker, &self.progress);
        let topic = broker.spec.topic();
        let producing =
            producer::run(&databases.producer, &databases.producer_pool, topic, &self.plan, progress);
        let stage = Stage { processes: &self.processes, outage: &broker.outage, progress };
        let faults = faults::inject(&stage, &self.plan, self.args.time_limit());
        let again = again::deliver_again(&broker.direct, databases, &self.plan, progress);
        let (_, _, copies) = tokio::try_join!(producing, faults, again)?;
        self.settled(&copies).await
    }

    /// Watches relays and consumer for as long as it is polled. Returns only if they have a
    /// problem.
    async fn watch(&self) -> DemoError {
        let admin = match self.admin() {
            Ok(admin) => admin,
            Err(error) => return error,
        };
        loop {
            let effects = self.databases.consumer_pool.count("SELECT count(*) FROM effect").await;
            let relays = admin.relays().await;
            let (effects, relays) = match (effects, relays) {
                (Ok(effects), Ok(relays)) => (effects, relays),
                (Err(error), _) => return DemoError::during("count the effects")(error),
                (_, Err(error)) => return DemoError::during("check the relays")(error),
            };
            let mut counts = self.progress.counts();
            let before = counts.clone();
            counts.effects = effects;
            if let Some(relay) = relays.first() {
                let passed = counts.committed.saturating_sub(relay.backlog.entries_max);
                counts.published = counts.published.max(passed);
                counts.epoch = relay.epoch;
                let holder = relay.holder.as_ref().filter(|holder| holder.expires_in.is_some());
                // `host:process:random`
                counts.leader = holder.and_then(|holder| holder.name.rsplit(':').nth(1)?.parse().ok());
            }
            self.look_at_crashes(&mut counts);
            if counts != before {
                self.progress.update(|now| {
                    (now.effects, now.published) = (counts.effects, counts.published);
                    (now.epoch, now.leader) = (counts.epoch, counts.leader);
                    (now.consumer_crashes, now.rewound) = (counts.consumer_crashes, counts.rewound);
                });
            }
            if let Err(error) = processes::check(&self.processes, self.directory, &self.progress.counts()) {
                return error;
            }
            tokio::time::sleep(COUNT_INTERVAL).await;
        }
    }

    fn admin(&self) -> Result<Arc<dyn LogAdmin>, DemoError> {
        let usage = |error: &dyn std::fmt::Display| DemoError::Usage(error.to_string());
        let source = Source::new("/demo").map_err(|error| usage(&error))?;
        let database = &self.databases.producer;
        let options = LogOptions::default().schema(database.schema()?);
        outbox_log::admin::open(&database.url, source, options).map_err(|error| usage(&error))
    }

    fn look_at_crashes(&self, counts: &mut Counts) {
        let (crashed, of) = (consumer::crashes(self.directory), self.plan.crashes.len());
        for (place, crash) in self.plan.crashes.iter().enumerate().take(crashed) {
            if place as u64 >= counts.consumer_crashes {
                let point = match crash.point {
                    CrashPoint::BeforeCommit => "between effect and commit",
                    CrashPoint::BeforeAck => "between commit and acknowledgement",
                };
                let number = place + 1;
                self.progress
                    .say(&format!("consumer crashed {point} ({number} of {of}): starting another one"));
            }
        }
        counts.consumer_crashes = crashed as u64;
        if counts.rewound == 0
            && let Some(again) = consumer::rewound(self.directory).filter(|again| *again > 0)
        {
            self.progress.say(&format!("consumer moved back by {again} messages"));
            counts.rewound = again;
        }
    }

    /// Waits until every order has taken effect, every copy has arrived, and no delivery follows.
    async fn settled(&self, copies: &[Uuid]) -> Result<(), DemoError> {
        let orders = self.plan.orders;
        self.progress.until(|counts| counts.effects >= orders).await;
        let distinct = "SELECT count(DISTINCT message_id) FROM effect";
        let what = "count the effects";
        while self.databases.consumer_pool.count(distinct).await.map_err(DemoError::during(what))? < orders {
            tokio::time::sleep(COUNT_INTERVAL).await;
        }
        let (mut delivered, mut since) = (0, Instant::now());
        loop {
            let journal = self.journal()?;
            if journal.deliveries.len() != delivered {
                (delivered, since) = (journal.deliveries.len(), Instant::now());
            }
            let times = journal.times();
            let have_arrived = copies.iter().all(|id| times.get(id).is_some_and(|times| *times > 1));
            if have_arrived && since.elapsed() >= QUIET {
                return Ok(());
            }
            tokio::time::sleep(COUNT_INTERVAL).await;
        }
    }

    /// Returns when nothing has changed for [`STALLED`].
    async fn stalled(&self) {
        let mut before = self.progress.counts();
        loop {
            let changed = self.progress.until(|counts| *counts != before);
            if tokio::time::timeout(STALLED, changed).await.is_err() {
                return;
            }
            before = self.progress.counts();
        }
    }

    fn journal(&self) -> Result<Journal, DemoError> {
        Journal::read(self.directory).map_err(DemoError::during("read the consumer's journal"))
    }

    /// Returns notes about faults that this run does not inject, and about facts that it observes
    /// in another way.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        match self.broker.outage {
            Outage::Impossible(reason) => notes.push(format!("the broker was not stopped: {reason}")),
            Outage::Mock(_) => notes.push(String::from(
                "the Kafka in this process keeps everything in memory; for a durable one, pass --broker",
            )),
            Outage::Proxy(_) => {}
        }
        if !self.broker.direct.has_offsets() {
            notes.push(String::from("no consumer started from older offsets: this broker has none"));
        }
        if self.args.without_inbox_guard {
            notes.push(String::from("the inbox's guard was switched off"));
        }
        notes
    }

    async fn check(&self, mut notes: Vec<String>) -> Result<Report, DemoError> {
        let what = "read the data to check";
        let (databases, journal) = (self.databases, self.journal()?);
        let occurrences = match plain::read_log(&self.broker.direct).await? {
            Some(log) => log,
            None => {
                notes.push(String::from(
                    "published messages were counted at the consumer, because this broker keeps no log",
                ));
                journal.deliveries.clone()
            }
        };
        let topic_read = TopicRead { ordered: self.broker.direct.is_ordered(), complete: true, occurrences };
        let guarded = !self.args.without_inbox_guard;
        let (producer, consumer) = (databases.producer.plain_url()?, databases.consumer.plain_url()?);
        let sources = Sources { producer: &producer, consumer: &consumer, plan: &self.plan, guarded };
        let observed = check::read(&sources, topic_read).await.map_err(DemoError::during(what))?;
        let (ordered, charged) = tokio::try_join!(
            databases.producer_pool.count("SELECT CAST(coalesce(sum(cents), 0) AS bigint) FROM business"),
            databases.consumer_pool.count("SELECT CAST(coalesce(sum(cents), 0) AS bigint) FROM effect"),
        )
        .map_err(DemoError::during(what))?;
        let times = journal.times();
        Ok(Report {
            seed: self.plan.seed,
            database: databases.name.clone(),
            broker: self.broker.name.clone(),
            seconds: self.begun_at.elapsed().as_secs_f64(),
            rolled_back: self.plan.rolled_back().len() as u64,
            counts: self.progress.counts(),
            redelivered: times.values().map(|times| times - 1).sum(),
            duplicates_suppressed: journal.suppressed,
            dead_letters: observed.dead_letters,
            parked: observed.parked,
            guarded,
            verdict: Verdict::of(&observed.history, (ordered, charged)),
            notes,
        })
    }
}
