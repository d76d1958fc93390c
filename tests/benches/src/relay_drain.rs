//! How fast a backlog leaves PostgreSQL, against the bare parts.
//!
//! *Bare* reads the same rows with one plain SELECT, in batches by id, and pipelines them to the
//! broker's client library. It sends as many bytes of headers, counts confirmations, and stores
//! nothing. *Relay* is the engine with its adapter, lease, cursor and checkpoints. Both start cold
//! (connect included) on a fresh topic, in turns.

use std::time::Instant;

use clap::ValueEnum;
use engine::EngineOptions;

use crate::Failure;
use crate::cli::Run;
use crate::plot::{Line, Plot};
use crate::relay_metrics;
use crate::report::{Report, Spread};
use crate::rig::{Database, Published, Shape, drain, turns};
use crate::target::{Broker, Rows, Target, backlog};

/// Minimum speed relative to the bare parts, in the case of the target.
const RATIO_MIN: f64 = 0.85;
const KEYS: u32 = 100_000;
const PAYLOAD: u32 = 256;

/// The cases to measure; the whole table unless a size is given.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Only these brokers.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Broker>,
    /// Number of entries in the backlog; measures one case instead of the table.
    #[arg(long)]
    messages: Option<u32>,
    /// Size of each payload, in bytes; measures one case instead of the table.
    #[arg(long)]
    payload_bytes: Option<u32>,
    /// Number of different ordering keys; measures one case instead of the table.
    #[arg(long)]
    keys: Option<u32>,
    /// Maximum number of entries in the relay's memory (default: the engine's).
    #[arg(long)]
    window_entries: Option<usize>,
    /// Maximum number of bytes in the relay's memory (default: the engine's).
    #[arg(long)]
    window_bytes: Option<usize>,
    /// Measures the cost of metrics instead: the relay with them against itself without them.
    #[arg(long)]
    metrics: bool,
}

impl Args {
    fn settings(&self) -> EngineOptions {
        let defaults = EngineOptions::default();
        EngineOptions::default()
            .window_entries(self.window_entries.unwrap_or(defaults.window_entries))
            .window_bytes(self.window_bytes.unwrap_or(defaults.window_bytes))
    }

    fn shapes(&self, broker: Broker, quick: bool) -> Vec<Shape> {
        let usual = usual(broker);
        if self.messages.is_some() || self.payload_bytes.is_some() || self.keys.is_some() {
            let messages = self.messages.unwrap_or(usual.messages);
            return vec![Shape {
                messages,
                payload_bytes: self.payload_bytes.unwrap_or(PAYLOAD),
                keys: self.keys.unwrap_or(KEYS),
            }];
        }
        if quick {
            return vec![Shape { messages: usual.messages / 10, ..usual }];
        }
        let backlogs: &[u32] = match broker {
            Broker::Kafka => &[10_000, 100_000, 1_000_000],
            Broker::Rabbitmq => &[10_000, 100_000],
            Broker::Sqs => &[10_000, 40_000],
        };
        let backlogs = backlogs.iter().map(|messages| Shape { messages: *messages, ..usual });
        let payloads = [(100, 1), (1_024, 1), (16_384, 10)].map(|(payload_bytes, fewer)| Shape {
            payload_bytes,
            messages: usual.messages / fewer,
            ..usual
        });
        // If a key has one message in flight, one key is as fast as one round trip.
        let patient = if broker == Broker::Kafka { 1 } else { 20 };
        let keys = [(1, patient), (100, 1)].map(|(keys, fewer)| Shape {
            keys,
            messages: usual.messages / fewer,
            ..usual
        });
        backlogs.chain(payloads).chain(keys).collect()
    }
}

/// Returns the case of the target.
fn usual(broker: Broker) -> Shape {
    let messages = match broker {
        Broker::Kafka => 300_000,
        Broker::Rabbitmq => 100_000,
        Broker::Sqs => 40_000,
    };
    Shape { messages, payload_bytes: PAYLOAD, keys: KEYS }
}

/// The rounds of one case.
struct Series {
    broker: Broker,
    name: &'static str,
    shape: Shape,
    /// Messages per second, one figure for each round.
    bare: Vec<f64>,
    relay: Vec<f64>,
}

impl Series {
    fn ratio(&self) -> Spread {
        Spread::of_ratios(&self.relay, &self.bare)
    }

    /// Returns whether the target applies to it: many keys, the usual payload, the largest backlog.
    fn is_judged(&self, all: &[Self]) -> bool {
        let like = |other: &&Self| other.broker == self.broker && other.shape.has_usual_messages();
        let largest = all.iter().filter(like).map(|other| other.shape.messages).max();
        self.shape.has_usual_messages() && Some(self.shape.messages) == largest
    }
}

impl Shape {
    fn has_usual_messages(&self) -> bool {
        self.keys == KEYS && self.payload_bytes == PAYLOAD
    }
}

pub(crate) async fn run(run: &Run, args: &Args) -> Result<Report, Failure> {
    if args.metrics {
        let brokers = if args.only.is_empty() { vec![Broker::Kafka] } else { args.only.clone() };
        let case = |broker| {
            let usual = usual(broker);
            let messages = if run.options.quick { usual.messages / 10 } else { usual.messages };
            let shape = Shape {
                messages: args.messages.unwrap_or(messages),
                payload_bytes: args.payload_bytes.unwrap_or(PAYLOAD),
                keys: args.keys.unwrap_or(KEYS),
            };
            (broker, shape)
        };
        let cases = brokers.into_iter().map(case).collect();
        return relay_metrics::run(run, cases, &args.settings()).await;
    }
    let database = Database::create().await?;
    let brokers = if args.only.is_empty() { Broker::value_variants().to_vec() } else { args.only.clone() };
    let rounds = run.options.rounds(5);
    let cases: Vec<(Broker, Shape)> = brokers
        .into_iter()
        .flat_map(|broker| {
            args.shapes(broker, run.options.quick).into_iter().map(move |shape| (broker, shape))
        })
        .collect();
    let progress = run.progress(cases.len() * rounds * 2)?;
    let mut all = Vec::new();
    for (broker, shape) in cases {
        let target = broker.target()?;
        let mut series = Series { broker, name: target.name(), shape, bare: Vec::new(), relay: Vec::new() };
        for round in 0..rounds {
            for through_relay in turns(round) {
                let what = if through_relay { "relay" } else { "bare" };
                progress.set_message(format!("{} {what}, round {}", series.name, round + 1));
                let settings = through_relay.then(|| args.settings());
                let rate = measure(&database, &*target, shape, settings, &run.published).await?;
                if through_relay { &mut series.relay } else { &mut series.bare }.push(rate);
                progress.inc(1);
            }
        }
        all.push(series);
    }
    progress.finish_and_clear();
    database.drop().await?;
    Ok(report(&all))
}

/// Runs one turn and returns messages per second.
async fn measure(
    database: &Database,
    target: &dyn Target,
    shape: Shape,
    through_relay: Option<EngineOptions>,
    published: &Published,
) -> Result<f64, Failure> {
    let topic = backlog(database, target, shape).await?;
    let took = if let Some(settings) = through_relay {
        drain(database, target.connector()?, settings, u64::from(shape.messages), published).await?
    } else {
        let started = Instant::now();
        let confirmed = target.bare(Rows::open(&database.url, &topic).await?).await?;
        if confirmed != u64::from(shape.messages) {
            return Err(format!("bare {}: {confirmed} of {} confirmed", target.name(), shape.messages).into());
        }
        started.elapsed()
    };
    target.remove(&topic).await?;
    Ok(f64::from(shape.messages) / took.as_secs_f64())
}

fn report(all: &[Series]) -> Report {
    let mut report = Report::new("relay_drain");
    let row = |one: &Series| {
        let Shape { messages, payload_bytes, keys } = one.shape;
        [
            one.name.into(),
            messages.into(),
            payload_bytes.into(),
            keys.into(),
            Spread::of(&one.bare).into(),
            Spread::of(&one.relay).into(),
            one.ratio().into(),
        ]
    };
    report.table(
        "messages per second, median (min–max) of the rounds; the ratio is taken round by round",
        ["broker", "backlog", "payload bytes", "keys", "bare", "relay", "relay / bare"],
        all.iter().map(row),
    );
    for one in all.iter().filter(|one| one.is_judged(all)) {
        report.at_least(format!("{}: relay / bare", one.name), RATIO_MIN, one.ratio().median);
    }
    report.plot(plot(all));
    report
}

/// Returns a plot of throughput by backlog.
fn plot(all: &[Series]) -> Plot {
    let mut lines: Vec<Line> = Vec::new();
    for one in all.iter().filter(|one| one.shape.has_usual_messages()) {
        for (what, rates) in [("relay", &one.relay), ("bare", &one.bare)] {
            let name = format!("{} {what}", one.name);
            let point = (f64::from(one.shape.messages), Spread::of(rates).median);
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push(point),
                None => lines.push(Line { name, points: vec![point] }),
            }
        }
    }
    for line in &mut lines {
        line.points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    Plot {
        name: "throughput-by-backlog",
        title: "Draining a backlog of 256-byte messages",
        x: "messages in the backlog",
        y: "messages per second",
        lines,
    }
}
