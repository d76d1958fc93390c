//! The cost of a page for the server, for any length of backlog and history, and beside
//! transactions that stay open.
//!
//! The cost is the number of buffers that the reader's session touched, as the server counts them.
//! Only the throughput beside a pinned transaction is measured in time, in turns.

use engine::EngineOptions;
use outbox_log::{Acquired, Cursor, EntryId, LogReader, Mark, PageLimit, RelayName, RowLimit};

use crate::Failure;
use crate::cli::Run;
use crate::report::{Cell, Report, Spread};
use crate::rig::{Database, Pin, Shape, drain, log};
use crate::target::{Kafka, Target as _, backlog, fresh_topic};

/// Number of rows in a page.
const PAGE: usize = 1_000;
/// Number of pages in one measurement.
const PAGES: i64 = 5;
/// Number of measurements of one thing. Reports of other sessions can only add to a count, so the
/// lowest one is used.
const TRIES: usize = 3;

/// The size of the measurement.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Maximum number of rows in backlog and history (default 10,000,000; about 4 GB).
    #[arg(long)]
    rows_max: Option<u32>,
}

pub(crate) async fn run(run: &Run, args: &Args) -> Result<Report, Failure> {
    let rows_max = args.rows_max.unwrap_or(if run.options.quick { 20_000 } else { 10_000_000 });
    let sizes: Vec<u32> = [10_000, 100_000, 1_000_000, 10_000_000]
        .into_iter()
        .filter(|size| *size < rows_max)
        .chain([rows_max])
        .collect();
    let mut report = Report::new("relay_flat");
    let costs = costs(run, &sizes).await?;
    report.table(
        format!("buffers per page of {PAGE} rows, least of {TRIES} measurements"),
        [
            "rows",
            "transaction pinned in",
            "page inside the backlog",
            "page after the history",
            "poll that finds nothing",
        ],
        costs.iter().map(|cost| {
            [
                cost.rows.into(),
                cost.pin.name().into(),
                cost.backlog.into(),
                cost.history.into(),
                cost.poll.into(),
            ]
        }),
    );
    let steepness = |what: fn(&Cost) -> f64| {
        let figures: Vec<f64> = costs.iter().map(what).collect();
        let Spread { min, max, .. } = Spread::of(&figures);
        max / min
    };
    report.at_most("buffers of a page inside the backlog, max / min", 1.1, steepness(|cost| cost.backlog));
    report.at_most("buffers of a page after the history, max / min", 1.1, steepness(|cost| cost.history));
    pinned(run, &mut report).await?;
    Ok(report)
}

struct Cost {
    rows: u32,
    pin: Pin,
    backlog: f64,
    history: f64,
    poll: f64,
}

async fn costs(run: &Run, sizes: &[u32]) -> Result<Vec<Cost>, Failure> {
    let database = Database::create().await?;
    // Autovacuum would read the segments as well, at any time.
    database
        .run(
            "DO $$ DECLARE segment regclass; BEGIN FOR segment IN SELECT inhrelid::regclass FROM pg_inherits \
             WHERE inhparent = 'outbox_message'::regclass LOOP \
             EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = false)', segment); END LOOP; END $$",
        )
        .await?;
    let start = cursor(&database).await?.base;
    let progress = run.progress(sizes.len() * Pin::ALL.len())?;
    let mut costs = Vec::new();
    let mut rows = 0;
    for &size in sizes {
        progress.set_message(format!("{size} rows"));
        let shape = Shape { messages: size.saturating_sub(rows), payload_bytes: 100, keys: 1_000 };
        database.fill(&fresh_topic(), shape).await?;
        rows = size;
        for pin in Pin::ALL {
            let pinned = pin.open(&database).await?;
            costs.push(cost(&database, &start, rows, pin).await?);
            drop(pinned);
            progress.inc(1);
        }
        rows += 3 * NEWS;
    }
    progress.finish_and_clear();
    database.drop().await?;
    Ok(costs)
}

/// Number of new rows after the history, for each pin.
const NEWS: u32 = 6_000;

async fn cost(database: &Database, start: &Mark, rows: u32, pin: Pin) -> Result<Cost, Failure> {
    let middle = i64::from(rows / 2);
    let backlog = buffers(database, async |reader| {
        let difference = reader.next_difference(start).await?.ok_or("the backlog is not seen")?;
        pages(reader, &difference, middle).await
    })
    .await?;
    let head = head(database, start).await?;
    const POLLS: u32 = 1_000;
    let poll = buffers(database, async |reader| {
        for _ in 0..POLLS {
            if reader.next_difference(&head).await?.is_some() {
                return Err("something has committed".into());
            }
        }
        Ok(())
    })
    .await?;
    database.fill(&fresh_topic(), Shape { messages: NEWS, payload_bytes: 100, keys: 1_000 }).await?;
    let history = buffers(database, async |reader| {
        let difference = reader.next_difference(&head).await?.ok_or("the news are not seen")?;
        pages(reader, &difference, 0).await
    })
    .await?;
    let per_page = |all: f64| all / PAGES as f64;
    Ok(Cost {
        rows,
        pin,
        backlog: per_page(backlog),
        history: per_page(history),
        poll: poll / f64::from(POLLS),
    })
}

async fn pages(
    reader: &mut Box<dyn LogReader>,
    difference: &outbox_log::Difference,
    after: i64,
) -> Result<(), Failure> {
    let limit =
        PageLimit { entries_max: PAGE, bytes_max: 1 << 30, row: RowLimit::of(message::SizeLimit::CHUNKED) };
    let mut after = EntryId(after);
    for _ in 0..PAGES {
        let page = reader.read_page(difference, after, limit).await?;
        if page.entries.len() != PAGE {
            return Err(format!("a page of {} entries instead of {PAGE}", page.entries.len()).into());
        }
        after = page.entries.last().map_or(after, |entry| entry.id);
    }
    Ok(())
}

fn name() -> Result<RelayName, Failure> {
    Ok(RelayName::new("flat")?)
}

async fn cursor(database: &Database) -> Result<Cursor, Failure> {
    let mut keeper = log(database)?.checkpoint_store(&name()?, "bench").await?;
    match keeper.acquire(std::time::Duration::from_secs(1)).await? {
        Acquired::Granted { cursor, .. } => Ok(cursor),
        Acquired::Busy { holder, .. } => Err(format!("the lease is with {holder}").into()),
    }
}

async fn head(database: &Database, start: &Mark) -> Result<Mark, Failure> {
    let mut reader = log(database)?.reader(&name()?).await?;
    Ok(reader.next_difference(start).await?.ok_or("the backlog is not seen")?.head)
}

/// The buffers of all segments, their indexes and the sequence, as reported by sessions that have
/// ended.
const BUFFERS: &str = "SELECT ((SELECT coalesce(sum(coalesce(heap_blks_hit, 0) + coalesce(heap_blks_read, 0) \
    + coalesce(idx_blks_hit, 0) + coalesce(idx_blks_read, 0)), 0) FROM pg_statio_user_tables \
    WHERE relname LIKE 'outbox_message%') + (SELECT blks_hit + blks_read FROM pg_statio_user_sequences \
    WHERE relname = 'outbox_message_id_seq'))::bigint";
const READERS: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'relay %' AND datname = current_database()";

/// Counts the buffers that a separate reader touches while `work` uses it. Returns the lowest count
/// of several attempts.
async fn buffers(
    database: &Database,
    mut work: impl AsyncFnMut(&mut Box<dyn LogReader>) -> Result<(), Failure>,
) -> Result<f64, Failure> {
    let mut least = i64::MAX;
    for _ in 0..TRIES {
        let before = database.number(BUFFERS).await?;
        let mut reader = log(database)?.reader(&name()?).await?;
        work(&mut reader).await?;
        drop(reader);
        while database.number(READERS).await? > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        least = least.min(database.number(BUFFERS).await? - before);
    }
    Ok(least as f64)
}

/// Measures the ratio of the throughput with a pinned transaction to that without one, and the dead
/// rows that it leaves.
async fn pinned(run: &Run, report: &mut Report) -> Result<(), Failure> {
    const DEAD: &str = "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables \
        WHERE relname LIKE 'outbox_message%'";
    let rounds = run.options.rounds(5);
    let shape = Shape {
        messages: if run.options.quick { 5_000 } else { 100_000 },
        payload_bytes: 256,
        keys: 100_000,
    };
    let database = Database::create().await?;
    let kafka = Kafka::from_environment()?;
    let progress = run.progress(rounds * Pin::ALL.len())?;
    let mut rates = [const { Vec::new() }; 3];
    let mut dead = 0;
    for round in 0..rounds {
        for turn in 0..Pin::ALL.len() {
            let which = (turn + round) % Pin::ALL.len();
            let pin = Pin::ALL[which];
            progress.set_message(format!("draining, pin: {}", pin.name()));
            let topic = backlog(&database, &kafka, shape).await?;
            let pinned = pin.open(&database).await?;
            let messages = u64::from(shape.messages);
            let took =
                drain(&database, kafka.connector()?, EngineOptions::default(), messages, &run.published)
                    .await?;
            dead += database.number(DEAD).await?;
            drop(pinned);
            kafka.remove(&topic).await?;
            rates[which].push(f64::from(shape.messages) / took.as_secs_f64());
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    database.drop().await?;
    let ratio = |which: usize| Spread::of_ratios(&rates[which], &rates[0]);
    report.table(
        format!("messages per second of a backlog of {} × 256 B to Kafka", shape.messages),
        ["transaction pinned in", "messages per second", "with pin / without"],
        Pin::ALL.iter().enumerate().map(|(which, pin)| -> [Cell; 3] {
            [pin.name().into(), Spread::of(&rates[which]).into(), ratio(which).into()]
        }),
    );
    report.at_most("dead rows in the log", 0.0, dead as f64);
    for which in 1..Pin::ALL.len() {
        let what = format!("throughput with a pin ({}) / without", Pin::ALL[which].name());
        report.at_least(what, 0.9, ratio(which).median);
    }
    Ok(())
}
