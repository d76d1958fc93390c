//! One key is dead and has many held rows; another key must not wait long for its own messages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::EngineOptions;
use harness::watched::Watched;
use sqlx::Connection as _;
use tokio_util::sync::CancellationToken;

use super::gate::{Confirmed, Gate};
use super::rows::{HELD, Rows, park};
use crate::Failure;
use crate::cli::Run;
use crate::report::Report;
use crate::rig::{Database, PATIENCE, Percentiles, pipeline};
use crate::target::{Kafka, Target as _, fresh_topic};

const OTHER: &str = "other";
const PAYLOAD: u32 = 256;
const DELAY_MS_MAX: f64 = 1_000.0;
/// Pause between two messages of the other key.
const PAUSE: Duration = Duration::from_millis(20);

/// The delays of the other key.
struct Seen {
    /// Time from the start of a relay to the first confirmation.
    takeover: Duration,
    /// Times from each commit to its confirmation, while the held rows rest, and while they are
    /// read back.
    resting: Percentiles,
    draining: Percentiles,
    /// Number of rows that were read back meanwhile.
    drained: i64,
}

pub(super) async fn run(run: &Run, rows: &[u32], report: &mut Report) -> Result<(), Failure> {
    let most = rows.iter().max().copied().unwrap_or_default();
    let (sizes, messages): (&[u32], u32) = if run.options.quick { (&[most], 10) } else { (&[0, most], 500) };
    let progress = run.progress(sizes.len())?;
    let mut all = Vec::new();
    for &rows in sizes {
        progress.set_message(format!("{rows} held rows of a dead key"));
        all.push((rows, seen(rows, messages).await?));
        progress.inc(1);
    }
    progress.finish_and_clear();
    report.table(
        format!("{messages} messages of another key, one after the other, ms"),
        [
            "held rows of a dead key",
            "start → first confirmation",
            "commit → broker, p50",
            "p99",
            "longest",
            "while they are read back, p50",
            "p99",
            "longest",
            "rows read back meanwhile",
        ],
        all.iter().map(|(rows, seen)| {
            [
                (*rows).into(),
                (seen.takeover.as_secs_f64() * 1e3).into(),
                seen.resting.ms(0.5).into(),
                seen.resting.ms(0.99).into(),
                seen.resting.ms(1.0).into(),
                seen.draining.ms(0.5).into(),
                seen.draining.ms(0.99).into(),
                seen.draining.ms(1.0).into(),
                seen.drained.unsigned_abs().into(),
            ]
        }),
    );
    if let [(_, without), (_, with)] = all.as_slice() {
        let takeover = with.takeover.saturating_sub(without.takeover);
        report.at_most(
            "start → first confirmation, with held rows − without, ms",
            DELAY_MS_MAX,
            takeover.as_secs_f64() * 1e3,
        );
        report.at_most("longest delay of another key, rows at rest, ms", DELAY_MS_MAX, with.resting.ms(1.0));
        report.at_most(
            "longest delay of another key, rows read back, ms",
            DELAY_MS_MAX,
            with.draining.ms(1.0),
        );
    }
    Ok(())
}

async fn seen(rows: u32, messages: u32) -> Result<Seen, Failure> {
    const REQUEUE: &str =
        "UPDATE outbox_exception SET state = 'discarded', due_at = now() WHERE state = 'dead'";
    let database = Database::create().await?;
    let kafka = Kafka::from_environment()?;
    let topic = fresh_topic();
    kafka.prepare(&topic).await?;
    if rows > 0 {
        let dead =
            Rows { topic: &topic, state: "dead", rows: 1, payload_bytes: PAYLOAD, key: "dead-", keys: 1 };
        park(&database, dead).await?;
        park(&database, Rows { state: "held", rows, ..dead }).await?;
    }
    let (gate, mut watched) = Gate::new(true, OTHER);
    let connector = Arc::new(Watched::new(kafka.connector()?, gate));
    let stop = CancellationToken::new();
    append(&database, &topic).await?;
    let begun = Instant::now();
    let relaying = tokio::spawn(pipeline(&database, connector, EngineOptions::default())?.run(stop.clone()));
    let takeover = confirmed(&mut watched).await? - begun;
    let resting = delays(&database, &topic, messages, &mut watched).await?;
    database.run(REQUEUE).await?;
    let draining = delays(&database, &topic, messages, &mut watched).await?;
    let drained = i64::from(rows) - database.number(HELD).await?;
    stop.cancel();
    relaying.await?;
    kafka.remove(&topic).await?;
    database.drop().await?;
    Ok(Seen { takeover, resting, draining, drained })
}

async fn delays(
    database: &Database,
    topic: &str,
    messages: u32,
    watched: &mut Confirmed,
) -> Result<Percentiles, Failure> {
    let mut delays = Vec::new();
    for _ in 0..messages {
        let committed = append(database, topic).await?;
        delays.push(confirmed(watched).await?.saturating_duration_since(committed));
        tokio::time::sleep(PAUSE).await;
    }
    Ok(Percentiles::of(delays))
}

async fn confirmed(watched: &mut Confirmed) -> Result<Instant, Failure> {
    let confirmed = tokio::time::timeout(PATIENCE, watched.recv()).await;
    let at = confirmed.map_err(|_| format!("the other key was not confirmed within {PATIENCE:?}"))?;
    at.ok_or_else(|| "the relay is gone".into())
}

/// Writes one message of the other key, and returns when it was committed.
async fn append(database: &Database, topic: &str) -> Result<Instant, Failure> {
    const APPEND: &str = "INSERT INTO outbox_message (topic, key, kind, content_type, payload) \
        VALUES ($1, $2, 'bench.filled', 'application/octet-stream', '\\x78')";
    let mut connection = database.connect().await?;
    sqlx::query(APPEND).bind(topic).bind(OTHER).execute(&mut connection).await?;
    let committed = Instant::now();
    connection.close().await?;
    Ok(committed)
}
