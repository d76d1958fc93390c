//! How fast a backlog leaves for Kafka in transactions, against the same relay without
//! transactions.
//!
//! Each way has a separate database, so that it continues with its own cursor. Both start cold on a
//! fresh topic, in turns. The start (connecting, taking over the transactions) takes the same time
//! for any backlog, so it is reported separately, and the rate counts from the first confirmations
//! on.

use engine::{EngineOptions, Publishing};

use crate::Failure;
use crate::cli::Run;
use crate::report::{Report, Spread};
use crate::rig::{Database, Shape, drain_in_steps, turns};
use crate::target::{Kafka, Target as _, backlog};

/// Minimum speed relative to the relay without transactions.
const RATIO_MIN: f64 = 0.8;
const USUAL: Shape = Shape { messages: 1_000_000, payload_bytes: 256, keys: 100_000 };

/// The backlog.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Number of entries in the backlog.
    #[arg(long)]
    messages: Option<u32>,
    /// Size of each payload, in bytes.
    #[arg(long)]
    payload_bytes: Option<u32>,
}

pub(crate) async fn run(run: &Run, args: &Args) -> Result<Report, Failure> {
    let usual = if run.options.quick { USUAL.messages / 30 } else { USUAL.messages };
    let shape = Shape {
        messages: args.messages.unwrap_or(usual),
        payload_bytes: args.payload_bytes.unwrap_or(USUAL.payload_bytes),
        ..USUAL
    };
    let kafka = Kafka::from_environment()?;
    let databases = [Database::create().await?, Database::create().await?];
    let rounds = run.options.rounds(5);
    let progress = run.progress(rounds * 2)?;
    let (mut rates, mut starts) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for round in 0..rounds {
        for in_transactions in turns(round) {
            let place = usize::from(in_transactions);
            progress.set_message(format!("{}, round {}", ["plain", "in transactions"][place], round + 1));
            let database = &databases[place];
            let topic = backlog(database, &kafka, shape).await?;
            let settings = EngineOptions::default();
            let publishing: Publishing =
                if in_transactions { kafka.transactions()?.into() } else { kafka.connector()?.into() };
            let messages = u64::from(shape.messages);
            let drained = drain_in_steps(database, publishing, settings, messages, &run.published).await?;
            kafka.remove(&topic).await?;
            rates[place].push(drained.rate);
            starts[place].push(drained.start.as_secs_f64() * 1e3);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    for database in databases {
        database.drop().await?;
    }
    Ok(report(shape, &rates, &starts))
}

fn report(shape: Shape, [plain, in_transactions]: &[Vec<f64>; 2], starts: &[Vec<f64>; 2]) -> Report {
    let mut report = Report::new("relay_transactions");
    let ratio = Spread::of_ratios(in_transactions, plain);
    let row = [
        shape.messages.into(),
        shape.payload_bytes.into(),
        Spread::of(plain).into(),
        Spread::of(in_transactions).into(),
        ratio.into(),
    ];
    report.table(
        "messages per second, median (min–max) of the rounds; the ratio is taken round by round",
        ["backlog", "payload bytes", "plain", "in transactions", "in transactions / plain"],
        [row],
    );
    let [plain, in_transactions] = starts;
    report.table(
        "milliseconds from a cold start to the first confirmations",
        ["plain", "in transactions"],
        [[Spread::of(plain).into(), Spread::of(in_transactions).into()]],
    );
    report.at_least("in transactions / plain", RATIO_MIN, ratio.median);
    report
}
