//! One run from its seed to its report.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::args::Args;
use super::chaos::{Consumers, Relays, deliver_again, run_outages};
use super::check::{Observations, Observed, Verdict, read_consumer, read_producer};
use super::children::{Journals, RelayTask, read_journals};
use super::error::DemoError;
use super::plan::Plan;
use super::progress::Progress;
use super::report::Report;
use super::target::{Broker, Databases, Outage};
use super::{plain, producer};

/// How often the effects are counted.
const COUNT_INTERVAL: Duration = Duration::from_millis(100);
/// A run in which nothing happens any more is checked as it is.
const STALLED: Duration = Duration::from_secs(30);
/// A consumer that got nothing for so long has everything.
const QUIET: Duration = Duration::from_millis(600);

/// A run with everything that it needs.
struct Run<'a> {
    args: &'a Args,
    plan: Arc<Plan>,
    databases: &'a Databases,
    broker: &'a Broker,
    directory: &'a Path,
    progress: Progress,
    begun_at: Instant,
}

/// Runs the demo. Unless it is to be quiet, it tells on standard error what is happening.
///
/// On an interrupt (SIGINT, SIGTERM) it kills its processes and removes what it made.
///
/// # Errors
/// [`DemoError`] when there is no result.
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
        progress: progress.clone(),
        begun_at,
    };
    let outcome = Box::pin(run.supervised()).await;
    progress.finish();
    let is_fine =
        outcome.as_ref().map_or_else(|error| matches!(error, DemoError::Interrupted), Report::holds);
    if args.keep || !is_fine {
        directory.disable_cleanup(true);
        eprintln!("logs and files of this run: {}", directory.path().display());
    }
    if !args.keep {
        tell_leftovers(broker.remove().await);
        tell_leftovers(databases.remove().await);
    }
    outcome
}

/// The result of a run counts, also when something of it could not be removed.
fn tell_leftovers(removed: Result<(), DemoError>) {
    if let Err(error) = removed {
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        eprintln!("{error}: {cause}");
    }
}

impl Run<'_> {
    /// Bounded by the time limit and by the operator's patience.
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
        let stop = CancellationToken::new();
        let relays = self.relays();
        let consumers = self.consumers();
        let work = async {
            tokio::select! {
                done = self.work() => done?,
                () = self.stalled() => notes.push(format!(
                    "nothing happened for {} s, so what there was then was checked", STALLED.as_secs())),
            }
            stop.cancel();
            Ok(())
        };
        let (_, started, ()) = tokio::try_join!(relays.run(stop.clone()), consumers.run(stop.clone()), work)?;
        self.progress.say("checking");
        let journals = read_journals(&Consumers::journals(self.directory, started))?;
        self.check(&journals, notes).await
    }

    /// Producers, outages and copies, until all messages have had their effect and all copies have arrived.
    async fn work(&self) -> Result<(), DemoError> {
        let (databases, broker, progress) = (self.databases, self.broker, &self.progress);
        let producing = producer::run(
            &databases.producer,
            &databases.producer_pool,
            broker.spec.topic(),
            &self.plan,
            progress,
        );
        let outages = run_outages(&broker.outage, &self.plan.outages, progress);
        let again = deliver_again(&broker.direct, &databases.consumer_pool, &self.plan, progress);
        let active = async { tokio::try_join!(producing, outages, again).map(|(_, _, copies)| copies) };
        let copies = tokio::select! {
            copies = active => copies?,
            error = self.count_effects() => return Err(error),
        };
        tokio::select! {
            done = self.settled(&copies) => done,
            error = self.count_effects() => Err(error),
        }
    }

    /// Counts effects for as long as it is polled; answers only when it cannot.
    async fn count_effects(&self) -> DemoError {
        loop {
            match self.databases.consumer_pool.count("SELECT count(*) FROM demo_effect").await {
                Ok(effects) if effects != self.progress.counts().effects => {
                    self.progress.update(|counts| counts.effects = effects);
                }
                Ok(_) => {}
                Err(error) => return DemoError::during("count the effects")(error),
            }
            tokio::time::sleep(COUNT_INTERVAL).await;
        }
    }

    /// Waits until every order has had its effect, every copy has arrived, every killed relay has its successor,
    /// and nothing more is delivered.
    async fn settled(&self, copies: &[Uuid]) -> Result<(), DemoError> {
        let orders = self.plan.orders;
        self.progress.until(|counts| counts.effects >= orders).await;
        let distinct = "SELECT count(DISTINCT message_id) FROM demo_effect";
        let what = "count the effects";
        while self.databases.consumer_pool.count(distinct).await.map_err(DemoError::during(what))? < orders {
            tokio::time::sleep(COUNT_INTERVAL).await;
        }
        let (mut delivered, mut since) = (0, Instant::now());
        loop {
            let journals = self.journals()?;
            if journals.deliveries.len() != delivered {
                (delivered, since) = (journals.deliveries.len(), Instant::now());
            }
            let times = journals.times();
            let have_arrived = copies.iter().all(|id| times.get(id).is_some_and(|times| *times > 1));
            if have_arrived && self.has_successors() && since.elapsed() >= QUIET {
                return Ok(());
            }
            tokio::time::sleep(COUNT_INTERVAL).await;
        }
    }

    /// Whether every relay that is due to be killed was, and has its successor.
    fn has_successors(&self) -> bool {
        let counts = self.progress.counts();
        let due = self.plan.kills.iter().filter(|kill| kill.published <= counts.published).count() as u64;
        counts.relay_kills >= due && counts.relay_restarts >= counts.relay_kills
    }

    /// Ends when nothing has changed for long.
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

    fn journals(&self) -> Result<Journals, DemoError> {
        read_journals(&Consumers::journals(self.directory, self.progress.counts().consumers))
    }

    fn relays(&self) -> Relays<'_> {
        let database = self.databases.producer.clone();
        Relays {
            task: RelayTask { database, broker: self.broker.spec.clone() },
            kills: &self.plan.kills,
            directory: self.directory,
            progress: self.progress.clone(),
        }
    }

    fn consumers(&self) -> Consumers<'_> {
        Consumers {
            database: self.databases.consumer.clone(),
            effects: &self.databases.consumer_pool,
            broker: self.broker.spec.clone(),
            direct: &self.broker.direct,
            plan: &self.plan,
            guarded: !self.args.without_inbox_guard,
            directory: self.directory,
            progress: self.progress.clone(),
        }
    }

    /// Notes the faults that this run does not attempt, and facts that it observes in another way.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        match self.broker.outage {
            Outage::Impossible(reason) => notes.push(format!("the broker was not taken away: {reason}")),
            Outage::Mock(_) => notes.push(String::from(
                "the Kafka inside this process keeps everything in memory; for a durable one give --broker",
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

    async fn check(&self, journals: &Journals, mut notes: Vec<String>) -> Result<Report, DemoError> {
        let what = "read what is to be checked";
        let produced = read_producer(&self.databases.producer_pool).await.map_err(DemoError::during(what))?;
        let consumed = read_consumer(&self.databases.consumer_pool).await.map_err(DemoError::during(what))?;
        let (log, observed) = match plain::read_log(&self.broker.direct).await? {
            Some(log) => (log, Observed::Broker),
            None => (journals.deliveries.clone(), Observed::Consumer),
        };
        if observed == Observed::Consumer {
            notes.push(String::from(
                "published messages were counted where the consumer received them: this broker keeps no log",
            ));
        }
        let seen = Observations {
            orders: produced.orders,
            rolled_back: self.plan.rolled_back(),
            outbox: produced.outbox,
            log,
            ordered: self.broker.direct.is_ordered(),
            inbox: consumed.inbox,
            guarded: !self.args.without_inbox_guard,
            effects: consumed.effects,
        };
        let verdict = Verdict::of(&seen);
        let times = journals.times();
        Ok(Report {
            seed: self.plan.seed,
            database: self.databases.name.clone(),
            broker: self.broker.name.clone(),
            seconds: self.begun_at.elapsed().as_secs_f64(),
            rolled_back: seen.rolled_back.len() as u64,
            counts: self.progress.counts(),
            redelivered: times.values().map(|times| times - 1).sum(),
            duplicates_suppressed: journals.suppressed,
            dead_letters: consumed.dead_letters,
            parked: produced.parked,
            guarded: seen.guarded,
            verdict,
            notes,
        })
    }
}
