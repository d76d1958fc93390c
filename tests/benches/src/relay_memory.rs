//! Resident memory of the relay, in a separate process with default settings.

use crate::Failure;
use crate::cli::Run;
use crate::report::{Report, Spread};
use crate::rig::{Database, PATIENCE, RelayProcess, Shape, reach};
use crate::target::{Kafka, Target as _, backlog};

const MIB_MAX: f64 = 96.0;
/// Interval between queries of the broker's number of records.
const POLL: std::time::Duration = std::time::Duration::from_millis(20);

pub(crate) async fn run(run: &Run) -> Result<Report, Failure> {
    let shapes: &[(u32, u32)] = if run.options.quick {
        &[(10_000, 1_024), (1_000, 65_536)]
    } else {
        &[(100_000, 1_024), (1_000_000, 1_024), (10_000, 65_536), (100_000, 65_536)]
    };
    let rounds = run.options.rounds(3);
    let database = Database::create().await?;
    let kafka = Kafka::from_environment()?;
    let progress = run.progress(shapes.len() * rounds)?;
    let mut peaks = vec![Vec::new(); shapes.len()];
    for _ in 0..rounds {
        for (&(messages, payload_bytes), peaks) in shapes.iter().zip(&mut peaks) {
            progress.set_message(format!("{messages} × {payload_bytes} B"));
            let shape = Shape { messages, payload_bytes, keys: 100_000 };
            let topic = backlog(&database, &kafka, shape).await?;
            peaks.push(peak(&database, &kafka, &topic, messages).await?);
            kafka.remove(&topic).await?;
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    database.drop().await?;
    let mut report = Report::new("relay_memory");
    report.table(
        "peak of resident memory, MiB, PostgreSQL → Kafka, default settings",
        ["backlog", "payload bytes", "MiB"],
        shapes.iter().zip(&peaks).map(|((messages, payload), peaks)| {
            [(*messages).into(), (*payload).into(), Spread::of(peaks).into()]
        }),
    );
    let medians: Vec<f64> = peaks.iter().map(|peaks| Spread::of(peaks).median).collect();
    let Spread { max, .. } = Spread::of(&medians);
    report.at_most("resident MiB, largest median", MIB_MAX, max);
    if let [small, large, small_64, large_64] = medians[..] {
        report.at_most("1 KiB: ten times the backlog / the backlog", 1.1, large / small);
        report.at_most("64 KiB: ten times the backlog / the backlog", 1.1, large_64 / small_64);
    }
    Ok(report)
}

/// Runs a relay until the broker holds all messages. Returns its peak in MiB.
async fn peak(database: &Database, kafka: &Kafka, topic: &str, messages: u32) -> Result<f64, Failure> {
    let relay = RelayProcess::start(database, &kafka.section())?;
    reach(messages.into(), PATIENCE, POLL, async || {
        // Fails at once, with the reason, if the relay has ended.
        relay.memory_peak_mib()?;
        kafka.records(topic).await
    })
    .await?;
    let peak = relay.memory_peak_mib()?;
    relay.end().await?;
    Ok(peak)
}
