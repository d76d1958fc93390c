//! The cost of the relay when there is nothing to do.

use std::time::{Duration, Instant};

use crate::Failure;
use crate::cli::Run;
use crate::report::{Cell, Report};
use crate::rig::{Database, RelayProcess, Wal};
use crate::target::Kafka;

/// The time to which results are extrapolated.
const EXTRAPOLATED: Duration = Duration::from_secs(600);

pub(crate) async fn run(run: &Run) -> Result<Report, Failure> {
    let (settle, watch) = if run.options.quick {
        (Duration::from_secs(2), Duration::from_secs(5))
    } else {
        (Duration::from_secs(10), Duration::from_secs(120))
    };
    let database = Database::create().await?;
    let relay = RelayProcess::start(&database, &Kafka::from_environment()?.section())?;
    let progress = run.progress(2)?;
    progress.set_message("settling");
    tokio::time::sleep(settle).await;
    // Otherwise the server would write its own checkpoint meanwhile.
    database.run("CHECKPOINT").await?;
    progress.inc(1);
    progress.set_message("watching");
    let (wal, processor, begun) = (Wal::now(&database).await?, relay.processor_time()?, Instant::now());
    tokio::time::sleep(watch).await;
    let share = (relay.processor_time()? - processor).as_secs_f64() / begun.elapsed().as_secs_f64();
    let wal = wal.since(&database).await?;
    let memory = relay.memory_peak_mib()?;
    relay.end().await?;
    progress.finish_and_clear();
    database.drop().await?;
    let longer = EXTRAPOLATED.as_secs_f64() / watch.as_secs_f64();
    let mut report = Report::new("relay_idle");
    report.table(
        format!("no traffic, watched for {} s; 10 minutes are reckoned from it", watch.as_secs()),
        ["what", "per 10 minutes"],
        [
            ["processor seconds".into(), Cell::Figure(share * EXTRAPOLATED.as_secs_f64())],
            ["share of one core, %".into(), Cell::Figure(share * 100.0)],
            ["bytes of WAL, whole cluster".into(), Cell::Figure(wal.bytes * longer)],
            ["syncs of WAL, whole cluster".into(), Cell::Figure(wal.syncs * longer)],
            ["resident MiB".into(), Cell::Figure(memory)],
        ],
    );
    report.at_most("share of one core, %", 1.0, share * 100.0);
    report.at_most("bytes of WAL", 0.0, wal.bytes);
    Ok(report)
}
