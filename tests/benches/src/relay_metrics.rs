//! The cost of metrics for a relay that drains a backlog. The relay with the program's recorder,
//! with upkeep and a scrape every second, runs against itself without a recorder. In turns, in one
//! run.

use engine::EngineOptions;

use crate::Failure;
use crate::cli::Run;
use crate::report::{Report, Spread};
use crate::rig::{Database, Shape, drain, turns};
use crate::target::{Broker, backlog};

/// Minimum speed relative to the relay without metrics.
const RATIO_MIN: f64 = 0.98;

/// The turns of one broker.
struct Series {
    name: &'static str,
    messages: u32,
    /// Messages per second, one figure for each round.
    without: Vec<f64>,
    with: Vec<f64>,
}

/// Measures these brokers, each with a backlog of its shape.
pub(crate) async fn run(
    run: &Run,
    cases: Vec<(Broker, Shape)>,
    settings: &EngineOptions,
) -> Result<Report, Failure> {
    let database = Database::create().await?;
    let rounds = run.options.rounds(7);
    let progress = run.progress(cases.len() * rounds * 2)?;
    let mut all = Vec::new();
    for (broker, shape) in cases {
        let target = broker.target()?;
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            for is_recorded in turns(round) {
                let what = if is_recorded { "with metrics" } else { "without" };
                progress.set_message(format!("{} {what}, round {}", target.name(), round + 1));
                let topic = backlog(&database, &*target, shape).await?;
                let before = run.published.recording().published();
                let recorded = is_recorded.then(|| run.published.recording().record());
                let messages = u64::from(shape.messages);
                let took =
                    drain(&database, target.connector()?, settings.clone(), messages, &run.published).await?;
                drop(recorded);
                let seen = run.published.recording().published() - before;
                if seen != if is_recorded { messages } else { 0 } {
                    return Err(format!("{what}: {seen} of {messages} messages were recorded").into());
                }
                target.remove(&topic).await?;
                let rate = f64::from(shape.messages) / took.as_secs_f64();
                if is_recorded { &mut with } else { &mut without }.push(rate);
                progress.inc(1);
            }
        }
        all.push(Series { name: target.name(), messages: shape.messages, without, with });
    }
    progress.finish_and_clear();
    database.drop().await?;
    Ok(report(&all))
}

fn report(all: &[Series]) -> Report {
    let mut report = Report::new("relay_drain --metrics");
    report.table(
        "messages per second, median (min–max) of the rounds; the ratio is taken round by round",
        ["broker", "backlog", "without metrics", "with metrics", "with / without"],
        all.iter().map(|one| {
            [
                one.name.into(),
                one.messages.into(),
                Spread::of(&one.without).into(),
                Spread::of(&one.with).into(),
                Spread::of_ratios(&one.with, &one.without).into(),
            ]
        }),
    );
    for one in all {
        let ratio = Spread::of_ratios(&one.with, &one.without).median;
        report.at_least(format!("{}: with metrics / without, median", one.name), RATIO_MIN, ratio);
    }
    report
}
