//! The latency of a message, PostgreSQL → relay → Kafka → consumer, under open-loop load.
//!
//! Transactions start at fixed times, even if earlier ones have not ended: a system that stalls is
//! charged for every message that waited. Relay and consumer run in this process. The relay only
//! polls: no commit wakes it.

mod clock;
mod consumer;
mod producer;

use std::sync::Arc;
use std::time::Duration;

use engine::{EngineOptions, Publishing};
use harness::watched::Watched;
use tokio_util::sync::CancellationToken;

use crate::Failure;
use crate::cli::Run;
use crate::environment;
use crate::plot::{Line, Plot};
use crate::report::Report;
use crate::rig::{Database, PATIENCE, Percentiles, pipeline};
use crate::target::{Kafka, Target as _, fresh_topic};
use clock::Clock;

/// From this load on, transactions carry ten messages: this server can hardly commit more often.
const BATCHED_FROM: u32 = 5_000;
/// Up to this load, targets are judged.
const JUDGED_TO: u32 = 1_000;

/// The loads to measure.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Messages per second; several with commas (default 10, 100, 1,000, 10,000).
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    rates: Vec<u32>,
    /// The relay publishes in transactions, and the consumer reads committed records only.
    #[arg(long)]
    transactional: bool,
    /// Duration of each load, in seconds.
    #[arg(long)]
    seconds: Option<u32>,
}

pub(crate) async fn run(run: &Run, args: &Args) -> Result<Report, Failure> {
    let rates = match (args.rates.as_slice(), run.options.quick) {
        ([], true) => vec![100],
        ([], false) => vec![10, 100, 1_000, 10_000],
        (rates, _) => rates.to_vec(),
    };
    let seconds = args.seconds.unwrap_or(if run.options.quick { 2 } else { 20 });
    let rounds = run.options.rounds(3);
    let progress = run.progress(rates.len() * rounds)?;
    let mut loads: Vec<Load> = rates.into_iter().map(Load::new).collect();
    for _ in 0..rounds {
        for load in &mut loads {
            progress.set_message(format!("{} messages per second", load.rate));
            measure(load, seconds, args.transactional).await?;
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    let fsync_ms = tokio::task::spawn_blocking(environment::fsync).await??.median / 1e3;
    Ok(report(&loads, args.transactional, fsync_ms))
}

/// One load with the samples of all rounds.
struct Load {
    rate: u32,
    to_commit: Vec<Duration>,
    to_broker: Vec<Duration>,
    to_effect: Vec<Duration>,
}

impl Load {
    fn new(rate: u32) -> Self {
        Self { rate, to_commit: Vec::new(), to_broker: Vec::new(), to_effect: Vec::new() }
    }
}

async fn measure(load: &mut Load, seconds: u32, transactional: bool) -> Result<(), Failure> {
    let database = Database::create().await?;
    database
        .run("CREATE TABLE business (id bigint PRIMARY KEY); CREATE TABLE effect (id bigint PRIMARY KEY)")
        .await?;
    let kafka = Kafka::from_environment()?;
    let topic = fresh_topic();
    kafka.prepare(&topic).await?;
    let batch = if load.rate >= BATCHED_FROM { 10 } else { 1 };
    let messages = (load.rate * seconds) as usize / batch * batch;
    let clock = Arc::new(Clock::new(messages));

    let settings = EngineOptions::default();
    let publishing = if transactional {
        Publishing::from(kafka.transactions()?)
    } else {
        Publishing::Plain(Arc::new(Watched::new(kafka.connector()?, Arc::clone(&clock))))
    };
    let pipeline = pipeline(&database, publishing, settings)?;
    let stop = CancellationToken::new();
    let relaying = tokio::spawn(pipeline.run(stop.clone()));
    let (consuming, shutdown) = consumer::start(&database, &kafka, &topic, Arc::clone(&clock)).await?;

    producer::warm_up(&database, &topic, &clock).await?;
    producer::produce(&database, &topic, load.rate, batch, &clock).await?;
    clock.all_consumed(PATIENCE).await?;

    shutdown.graceful.cancel();
    consuming.await??;
    stop.cancel();
    relaying.await?;
    kafka.remove(&topic).await?;
    database.drop().await?;
    for times in clock.times() {
        load.to_commit.push(times.committed - times.intended);
        load.to_broker.push(times.acknowledged.saturating_sub(times.committed));
        load.to_effect.push(times.consumed.saturating_sub(times.committed));
    }
    Ok(())
}

fn report(loads: &[Load], transactional: bool, fsync_ms: f64) -> Report {
    let mut report = Report::new(if transactional { "latency_transactional" } else { "latency" });
    let mut rows = Vec::new();
    let mut lines =
        ["commit to broker, p50", "commit to broker, p99", "commit to effect, p50", "commit to effect, p99"]
            .map(|name| Line { name: name.to_owned(), points: Vec::new() });
    for load in loads {
        let legs = [&load.to_commit, &load.to_broker, &load.to_effect]
            .map(|samples| Percentiles::of(samples.clone()));
        for (leg, name) in
            legs.iter().zip(["intended start → commit", "commit → broker", "commit → consumer's commit"])
        {
            // The moment at which the broker confirms a transaction is not recorded.
            if transactional && name == "commit → broker" {
                continue;
            }
            rows.push([
                load.rate.into(),
                name.into(),
                load.to_commit.len().into(),
                leg.ms(0.5).into(),
                leg.ms(0.9).into(),
                leg.ms(0.99).into(),
                leg.ms(0.999).into(),
                leg.ms(1.0).into(),
            ]);
        }
        let [_, broker, effect] = &legs;
        for (line, figure) in
            lines.iter_mut().zip([broker.ms(0.5), broker.ms(0.99), effect.ms(0.5), effect.ms(0.99)])
        {
            line.points.push((load.rate.into(), figure));
        }
        if load.rate <= JUDGED_TO && transactional {
            report.at_most(format!("{}/s: commit → effect, p50 ms", load.rate), 60.0, effect.ms(0.5));
        } else if load.rate <= JUDGED_TO {
            report.at_most(format!("{}/s: commit → broker, p50 ms", load.rate), 5.0, broker.ms(0.5));
            report.at_most(format!("{}/s: commit → broker, p99 ms", load.rate), 25.0, broker.ms(0.99));
        }
    }
    report.table(
        format!(
            "milliseconds, all rounds together; an fsync alone takes {fsync_ms:.2} ms, and commit → consumer's commit has one"
        ),
        ["messages per second", "leg", "samples", "p50", "p90", "p99", "p99.9", "max"],
        rows,
    );
    report.table(
        "share of one fsync in commit → consumer's commit",
        ["messages per second", "of the p50, %"],
        loads.iter().map(|load| {
            [load.rate.into(), (100.0 * fsync_ms / Percentiles::of(load.to_effect.clone()).ms(0.5)).into()]
        }),
    );
    if transactional {
        return report;
    }
    report.plot(Plot {
        name: "latency-by-load",
        title: "Latency under open-loop load: PostgreSQL to Kafka to inbox",
        x: "messages per second",
        y: "milliseconds",
        lines: lines.into(),
    });
    report
}
