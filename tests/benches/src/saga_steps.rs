//! Sagas of local steps against the same statements by hand, each in a separate transaction; the
//! cost of open sagas; and the time until a saga begins.
//!
//! Sagas are started beforehand, because their starts belong to transactions that exist anyway.
//! Both sides use the same number of connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use migrations::{Line, Migrator};
use outbox::Outbox;
use saga::{Sagas, Stop, WorkerOptions};
use sqlx::{PgPool, Postgres};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::Failure;
use crate::cli::Run;
use crate::report::{Report, Spread};
use crate::rig::Database;

/// The size of the measurement.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Number of sagas in each turn (default 2,000).
    #[arg(long)]
    sagas: Option<usize>,
    /// Number of open sagas in the larger table (default 1,000,000).
    #[arg(long)]
    open: Option<i64>,
}

/// Numbers of steps in one saga.
const STEPS: [usize; 3] = [1, 3, 10];
/// Number of concurrent sagas, or of workers by hand.
const CONCURRENCY: u32 = 16;
const EFFECT: &str = "INSERT INTO effect (saga, step) VALUES ($1, $2)";
/// Inserts sagas that wait for a reply, half of them without a timeout, half with one in a year.
const OPEN: &str = "INSERT INTO saga (type, id, version, input, epoch, waits_for, wake_at) \
    SELECT 'steps', 'open-' || n, 1, '0', 1, 'reply', CASE WHEN n % 2 = 0 THEN now() + interval '1 year' END \
    FROM generate_series($1 + 1, $2) AS n";

pub(crate) async fn run(run: &Run, args: &Args) -> Result<Report, Failure> {
    let quick = run.options.quick;
    let sagas = args.sagas.unwrap_or(if quick { 100 } else { 2_000 });
    let open = args.open.unwrap_or(if quick { 10_000 } else { 1_000_000 }).max(100);
    let rounds = run.options.rounds(5);
    let database = Database::create().await?;
    database.run("CREATE TABLE effect (saga text NOT NULL, step integer NOT NULL)").await?;
    Migrator::<Postgres>::new(Line::Saga).up(&mut database.connect().await?).await?;
    let pool =
        outbox::pool_options::<Postgres>().max_connections(CONCURRENCY + 8).connect(&database.url).await?;
    let progress = run.progress(rounds * (2 * STEPS.len() + 2) + 1)?;
    let mut report = Report::new("saga");
    let mut rates = vec![(Vec::new(), Vec::new()); STEPS.len()];
    for round in 0..rounds {
        for (steps, (by_saga, by_hand)) in STEPS.into_iter().zip(&mut rates) {
            progress.set_message(format!("{steps} steps, round {round}"));
            by_saga.push(by_sagas(&pool, steps, sagas).await?);
            progress.inc(1);
            by_hand.push(by_hands(&pool, steps, sagas).await?);
            progress.inc(1);
        }
    }
    let mut rows = Vec::new();
    for (steps, (by_saga, by_hand)) in STEPS.into_iter().zip(&rates) {
        let ratio = Spread::of_ratios(by_saga, by_hand);
        rows.push([steps.into(), Spread::of(by_saga).into(), Spread::of(by_hand).into(), ratio.into()]);
        report.at_least(format!("sagas / by hand, {steps} steps"), 0.6, ratio.median);
    }
    report.table(
        format!("sagas per second, {sagas} a turn, {CONCURRENCY} at once"),
        ["steps", "sagas", "by hand", "sagas / by hand"],
        rows,
    );
    let mut flat = Vec::new();
    let mut there = 0;
    for count in [open / 100, open] {
        progress.set_message(format!("{count} open sagas"));
        sqlx::query(OPEN).bind(there).bind(count).execute(&pool).await?;
        sqlx::query("VACUUM ANALYZE saga").execute(&pool).await?;
        there = count;
        let mut measured = Vec::new();
        for _ in 0..rounds {
            measured.push(by_sagas(&pool, 1, sagas).await?);
            progress.inc(1);
        }
        flat.push((count, measured));
    }
    let ratio = Spread::of_ratios(&flat[1].1, &flat[0].1);
    report.at_least(
        format!("sagas per second beside {open} open ones / beside {}", open / 100),
        0.8,
        ratio.median,
    );
    let rows = flat.iter().map(|(count, rates)| [(*count).to_string().into(), Spread::of(rates).into()]);
    report.table("sagas of one step per second, beside open ones", ["open", "sagas"], rows);
    let times = first_steps(&pool, if quick { 20 } else { 200 }).await?;
    progress.inc(1);
    let median = Spread::of(&times);
    report.at_most("start → first step, p50, ms", 10.0, median.median);
    report.table("milliseconds from commit of the start to the first step", ["ms"], [[median.into()]]);
    progress.finish_and_clear();
    pool.close().await;
    database.drop().await?;
    Ok(report)
}

/// Starts sagas, then runs all of them. Returns sagas per second.
async fn by_sagas(pool: &PgPool, steps: usize, count: usize) -> Result<f64, Failure> {
    let (done, mut finished) = mpsc::unbounded_channel();
    let mut options = WorkerOptions::default();
    options.concurrency = CONCURRENCY.try_into()?;
    let sagas = Sagas::builder(pool.clone(), Outbox::new())
        .options(options)
        .saga("steps", 1, async move |saga: &mut saga::Run, _: i64| {
            let id = saga.id().to_owned();
            for step in 0..steps {
                let name = format!("step-{step}");
                saga.step(&name, async |tx| {
                    let effect = sqlx::query(EFFECT).bind(&id).bind(i32::try_from(step)?);
                    effect.execute(&mut **tx).await?;
                    Ok(())
                })
                .await?;
            }
            done.send(()).map_err(|_| Stop::because("the benchmark has ended"))
        })
        .open()
        .await?;
    let batch = uuid::Uuid::now_v7().simple().to_string();
    let mut tx = pool.begin().await?;
    for number in 0..count {
        assert_eq!(
            sagas.start(&mut tx, "steps", &format!("{batch}-{number}"), &0).await?,
            saga::Started::Started
        );
    }
    tx.commit().await?;
    let began = Instant::now();
    let worker = tokio::spawn(async move { sagas.run(std::future::pending()).await });
    for _ in 0..count {
        finished.recv().await.ok_or("the worker has ended")?;
    }
    let rate = count as f64 / began.elapsed().as_secs_f64();
    // The last sagas end almost at once, and are no longer measured.
    tokio::time::sleep(Duration::from_millis(100)).await;
    worker.abort();
    Ok(rate)
}

/// Runs the same statements, each in a separate transaction. Returns rounds of them per second.
async fn by_hands(pool: &PgPool, steps: usize, count: usize) -> Result<f64, Failure> {
    let (next, mut workers) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
    let began = Instant::now();
    for _ in 0..CONCURRENCY {
        let (pool, next) = (pool.clone(), Arc::clone(&next));
        workers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok::<_, sqlx::Error>(());
                }
                for step in 0..steps {
                    let mut tx = pool.begin().await?;
                    let effect = sqlx::query(EFFECT).bind(number.to_string()).bind(step as i32);
                    effect.execute(&mut *tx).await?;
                    tx.commit().await?;
                }
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

/// Returns the milliseconds from the commit of a start to the first step, one saga after the other.
async fn first_steps(pool: &PgPool, count: usize) -> Result<Vec<f64>, Failure> {
    let (begun, mut first) = mpsc::unbounded_channel();
    let sagas = Sagas::builder(pool.clone(), Outbox::new())
        .saga("first", 1, async move |saga: &mut saga::Run, _: i64| {
            saga.step("first", async |_| Ok(begun.send(Instant::now())?)).await
        })
        .open()
        .await?;
    let running = sagas.clone();
    let worker = tokio::spawn(async move { running.run(std::future::pending()).await });
    let mut times = Vec::with_capacity(count);
    for number in 0..count {
        // Long enough for the worker to poll rarely.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let mut tx = pool.begin().await?;
        let id = format!("{}-{number}", uuid::Uuid::now_v7().simple());
        assert_eq!(sagas.start(&mut tx, "first", &id, &0).await?, saga::Started::Started);
        tx.commit().await?;
        let committed = Instant::now();
        sagas.wake();
        let at = first.recv().await.ok_or("the worker has ended")?;
        times.push(at.saturating_duration_since(committed).as_secs_f64() * 1_000.0);
    }
    worker.abort();
    Ok(times)
}
