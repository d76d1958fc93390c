//! A topic comes back while new messages of its keys are written and commits are slow: the number
//! of held rows must fall.

use std::sync::Arc;
use std::time::Duration;

use engine::EngineOptions;
use harness::watched::Watched;
use sqlx::{PgPool, Postgres};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::gate::Gate;
use super::rows::HELD;
use crate::Failure;
use crate::cli::Run;
use crate::report::{Cell, Report};
use crate::rig::{Database, PATIENCE, Shape, pipeline, reach};
use crate::target::{Kafka, Target as _, fresh_topic};

const KEYS: u32 = 40;
const PAYLOAD: u32 = 256;
/// Messages in a transaction: enough that even the slowest commits reach the rate.
const BATCH: u32 = 10;
/// Connections of the producers.
const CONNECTIONS: u32 = 24;
/// New messages per second.
const RATE: u32 = 1_000;
const SAMPLE: Duration = Duration::from_millis(500);
/// Timeout of the drain.
const DRAINED_WITHIN: Duration = Duration::from_secs(90);

/// The statistics of the server about its tables.
#[derive(Debug, Clone, Copy)]
enum Statistics {
    /// None, as on the first day.
    None,
    /// Those of an ANALYZE of the log.
    Analysed,
}

impl Statistics {
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Analysed => "analysed",
        }
    }
}

/// The course of a drain after the topic has come back.
struct Course {
    commit_ms: u32,
    statistics: Statistics,
    /// The number of held rows when the topic came back, and then about twice a second.
    held: Vec<i64>,
    /// Time until nothing was held any more.
    drained: Duration,
}

pub(super) async fn run(run: &Run, report: &mut Report) -> Result<(), Failure> {
    let (held, commits): (u32, &[u32]) =
        if run.options.quick { (3_000, &[10]) } else { (30_000, &[0, 10, 20]) };
    let known = [Statistics::None, Statistics::Analysed];
    let known = if run.options.quick { &known[..1] } else { &known[..] };
    let progress = run.progress(commits.len() * known.len())?;
    let mut courses = Vec::new();
    for &statistics in known {
        for &commit_ms in commits {
            let known = statistics.name();
            progress.set_message(format!("{held} held, commits of {commit_ms} ms, statistics: {known}"));
            courses.push(course(held, commit_ms, statistics, run).await?);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    report.table(
        format!("a topic comes back, {KEYS} keys, {RATE} new messages a second meanwhile"),
        [
            "statistics",
            "commit_delay, ms",
            "held",
            "after 1 s",
            "after 2 s",
            "after 5 s",
            "none held after, s",
        ],
        courses.iter().map(|course| {
            let after = |seconds: usize| course.held.get(seconds * 2).copied().unwrap_or(0);
            [
                course.statistics.name().into(),
                course.commit_ms.into(),
                count(after(0)),
                count(after(1)),
                count(after(2)),
                count(after(5)),
                course.drained.as_secs_f64().into(),
            ]
        }),
    );
    for course in &courses {
        let growth = course.held.windows(3).map(|held| held[2] - held[0]).max().unwrap_or(0);
        report.at_most(
            format!(
                "commits of {} ms, statistics {}: held rows, growth within any second",
                course.commit_ms,
                course.statistics.name()
            ),
            0.0,
            growth as f64,
        );
    }
    Ok(())
}

fn count(rows: i64) -> Cell {
    Cell::Count(rows.unsigned_abs())
}

async fn course(held: u32, commit_ms: u32, statistics: Statistics, run: &Run) -> Result<Course, Failure> {
    let database = Database::create().await?;
    let kafka = Kafka::from_environment()?;
    let topic = fresh_topic();
    kafka.prepare(&topic).await?;
    let shape = Shape { messages: held, payload_bytes: PAYLOAD, keys: KEYS };
    match statistics {
        Statistics::None => {
            database.never_analyse().await?;
            database.append(&topic, shape).await?;
        }
        Statistics::Analysed => database.fill(&topic, shape).await?,
    }
    database.commit_slowly(Duration::from_millis(commit_ms.into())).await?;
    let (gate, _confirmed) = Gate::new(false, "none");
    let connector = Arc::new(Watched::new(kafka.connector()?, Arc::clone(&gate)));
    let published = run.published.count();
    let stop = CancellationToken::new();
    let relaying = tokio::spawn(pipeline(&database, connector, EngineOptions::default())?.run(stop.clone()));
    // All but the one that probes the topic.
    let all = u64::from(held) - 1;
    reach(all, PATIENCE, SAMPLE, async || Ok(database.number(HELD).await?.unsigned_abs())).await?;

    let over = CancellationToken::new();
    let producing = tokio::spawn(produce(database.clone(), topic.clone(), over.clone()));
    gate.open();
    let course = watch(&database, commit_ms, statistics).await;
    over.cancel();
    let produced = producing.await??;
    let course = course?;
    // The hand-over must leave nothing behind.
    run.published.reach(published + u64::from(held) + produced, PATIENCE).await?;
    stop.cancel();
    relaying.await?;
    kafka.remove(&topic).await?;
    database.drop().await?;
    Ok(course)
}

/// Counts the held rows from the time when their number first falls: by then the topic has been
/// retried.
async fn watch(database: &Database, commit_ms: u32, statistics: Statistics) -> Result<Course, Failure> {
    let mut connection = database.connect().await?;
    let mut held: Vec<i64> = Vec::new();
    let begun = Instant::now();
    let mut came_back = begun;
    loop {
        let now: i64 = sqlx::query_scalar(HELD).fetch_one(&mut connection).await?;
        if held.len() == 1 && now >= held[0] {
            // The topic is still blocked, and new messages are held as well.
            (held[0], came_back) = (now, Instant::now());
        } else {
            held.push(now);
        }
        if now == 0 {
            return Ok(Course { commit_ms, statistics, held, drained: came_back.elapsed() });
        }
        if begun.elapsed() > DRAINED_WITHIN {
            return Err(
                format!("still held after {DRAINED_WITHIN:?} under load, twice a second: {held:?}").into()
            );
        }
        tokio::time::sleep(SAMPLE).await;
    }
}

/// Writes new messages at fixed times until it is cancelled. Returns their number.
async fn produce(database: Database, topic: String, over: CancellationToken) -> Result<u64, Failure> {
    const APPEND: &str = "INSERT INTO outbox_message (topic, key, kind, content_type, payload) \
        SELECT $1, 'key-' || n % $3, 'bench.filled', 'application/octet-stream', \
        convert_to(repeat('x', $2), 'UTF8') FROM generate_series($4::bigint, $5) AS n";
    let pool: PgPool = outbox::pool_options::<Postgres>()
        .min_connections(CONNECTIONS)
        .max_connections(CONNECTIONS)
        .connect(&database.url)
        .await?;
    let began = Instant::now();
    let mut running: JoinSet<Result<(), Failure>> = JoinSet::new();
    let mut produced: u32 = 0;
    while !over.is_cancelled() {
        tokio::time::sleep_until(began + Duration::from_secs(1) * produced / RATE).await;
        let (first, pool, topic) = (i64::from(produced), pool.clone(), topic.clone());
        running.spawn(async move {
            let append = sqlx::query(APPEND).bind(topic).bind(i32::try_from(PAYLOAD)?).bind(i64::from(KEYS));
            append.bind(first).bind(first + i64::from(BATCH) - 1).execute(&pool).await?;
            Ok(())
        });
        produced += BATCH;
        while let Some(done) = running.try_join_next() {
            done??;
        }
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    pool.close().await;
    Ok(produced.into())
}
