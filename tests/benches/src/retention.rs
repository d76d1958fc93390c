//! Latency and throughput of producers while history is removed: nothing removed, a segment
//! emptied, or rows deleted in chunks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use message::Source;
use outbox::{NewMessage, Outbox, OutboxTransaction};
use outbox_log::{Acquired, Cursor, Fenced, LogOptions, RelayName, retention};
use sqlx::{AssertSqlSafe, PgPool, Postgres};
use tokio::task::JoinSet;

use crate::Failure;
use crate::cli::Run;
use crate::report::{Cell, Report, Spread};
use crate::rig::{Database, Percentiles, Wal, log};

/// Maximum delay of any transaction.
const DELAY_MS_MAX: f64 = 50.0;
const CLIENTS: u32 = 16;
const PAYLOAD: usize = 256;
/// Rows in a chunk: the usual recommendation.
const CHUNK: i64 = 10_000;
/// Time under load before and after the removal.
const AROUND: Duration = Duration::from_secs(1);
/// Pause between two chunks, in which other transactions can run.
const PAUSE: Duration = Duration::from_millis(10);

/// The way in which history is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Nothing,
    Segment,
    Delete,
}

impl Way {
    const ALL: [Self; 3] = [Self::Nothing, Self::Segment, Self::Delete];

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing is removed",
            Self::Segment => "segment emptied",
            Self::Delete => "DELETE in chunks, VACUUM",
        }
    }
}

/// The transactions of producers during one removal.
struct Turn {
    transactions: Percentiles,
    per_second: f64,
    removal: Duration,
}

pub(crate) async fn run(run: &Run) -> Result<Report, Failure> {
    let rows = if run.options.quick { 20_000 } else { 1_000_000 };
    let rounds = run.options.rounds(3);
    let database = Database::create().await?;
    let progress = run.progress((rounds + 1) * Way::ALL.len())?;
    let mut wal = Vec::new();
    for way in Way::ALL {
        progress.set_message(format!("{}, nobody writes", way.name()));
        wal.push(written(&database, way, rows).await? / f64::from(rows));
        progress.inc(1);
    }
    let mut turns = [const { Vec::new() }; 3];
    for round in 0..rounds {
        for turn in 0..Way::ALL.len() {
            let which = (turn + round) % Way::ALL.len();
            progress.set_message(format!("{}, {CLIENTS} clients", Way::ALL[which].name()));
            turns[which].push(under_load(&database, Way::ALL[which], rows).await?);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    database.drop().await?;
    Ok(report(rows, &turns, &wal))
}

fn report(rows: u32, turns: &[Vec<Turn>; 3], wal: &[f64]) -> Report {
    let mut report = Report::new("retention");
    let spread =
        |which: usize, what: fn(&Turn) -> f64| Spread::of(&turns[which].iter().map(what).collect::<Vec<_>>());
    report.table(
        format!("{CLIENTS} clients, one message per transaction, while {rows} rows of history are removed"),
        [
            "removal",
            "transactions per second",
            "p50 ms",
            "p99 ms",
            "longest ms",
            "removal s",
            "WAL bytes per row removed",
        ],
        Way::ALL.iter().enumerate().map(|(which, way)| -> [Cell; 7] {
            [
                way.name().into(),
                spread(which, |turn| turn.per_second).into(),
                spread(which, |turn| turn.transactions.ms(0.5)).into(),
                spread(which, |turn| turn.transactions.ms(0.99)).into(),
                spread(which, |turn| turn.transactions.ms(1.0)).into(),
                spread(which, |turn| turn.removal.as_secs_f64()).into(),
                wal[which].into(),
            ]
        }),
    );
    // Some transaction is always the slowest, even if nothing is removed.
    let longest = |which: usize| spread(which, |turn| turn.transactions.ms(1.0)).max;
    report.at_most(
        "longest transaction, segment emptied − nothing removed, ms",
        DELAY_MS_MAX,
        longest(1) - longest(0),
    );
    report
}

/// Returns the bytes of WAL that the removal itself writes.
async fn written(database: &Database, way: Way, rows: u32) -> Result<f64, Failure> {
    prepare(database, rows).await?;
    let wal = Wal::now(database).await?;
    remove(database, way).await?;
    Ok(wal.since(database).await?.bytes)
}

async fn under_load(database: &Database, way: Way, rows: u32) -> Result<Turn, Failure> {
    prepare(database, rows).await?;
    let pool = outbox::pool_options::<Postgres>()
        .min_connections(CLIENTS)
        .max_connections(CLIENTS)
        .connect(&database.url)
        .await?;
    let over = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(client(pool.clone(), Arc::clone(&over)));
    }
    tokio::time::sleep(AROUND).await;
    let removing = Instant::now();
    let removed = remove(database, way).await;
    let removal = removing.elapsed();
    tokio::time::sleep(AROUND).await;
    over.store(true, Relaxed);
    let mut transactions = Vec::new();
    while let Some(done) = clients.join_next().await {
        transactions.extend(done??);
    }
    let per_second = transactions.len() as f64 / began.elapsed().as_secs_f64();
    pool.close().await;
    removed?;
    Ok(Turn { transactions: Percentiles::of(transactions), per_second, removal })
}

/// Returns the duration of each transaction, from BEGIN to the answer of COMMIT.
async fn client(pool: PgPool, over: Arc<AtomicBool>) -> Result<Vec<Duration>, Failure> {
    let outbox = Outbox::<Postgres>::new();
    let mut took = Vec::new();
    while !over.load(Relaxed) {
        let began = Instant::now();
        outbox
            .transaction(&pool, async |tx: &mut OutboxTransaction<Postgres>| {
                tx.stage(NewMessage::new("orders").key("key").payload(vec![b'x'; PAYLOAD])).map(drop)
            })
            .await?;
        took.push(began.elapsed());
    }
    Ok(took)
}

/// Writes a history of two days ago, which is in another segment than today's rows, and a relay
/// that has passed all of it.
async fn prepare(database: &Database, rows: u32) -> Result<(), Failure> {
    const FILL: &str = "INSERT INTO outbox_message (message_id, topic, key, content_type, payload) \
        SELECT (lpad(to_hex((extract(epoch FROM now() - interval '2 days') * 1000)::bigint + n / 100), 12, '0') \
            || '7' || substr(noise, 1, 3) || '8' || substr(noise, 4, 15))::uuid, \
            'orders', 'key-' || n % 1000, 'application/octet-stream', convert_to(repeat('x', $2), 'UTF8') \
        FROM generate_series(1, $1) AS n CROSS JOIN LATERAL md5(n::text) AS noise";
    database.run("TRUNCATE outbox_message").await?;
    sqlx::query(FILL)
        .bind(i64::from(rows))
        .bind(i32::try_from(PAYLOAD)?)
        .execute(&mut database.connect().await?)
        .await?;
    database.run("VACUUM ANALYZE outbox_message").await?;
    pass(database).await?;
    // The first write of a page after a checkpoint logs a full-page image. With a checkpoint before
    // each turn, all turns pay for these alike.
    database.run("CHECKPOINT").await
}

/// Moves a relay's cursor behind all entries.
async fn pass(database: &Database) -> Result<(), Failure> {
    let (log, name) = (log(database)?, RelayName::new("history")?);
    let mut keeper = log.checkpoint_store(&name, "bench").await?;
    let Acquired::Granted { lease, cursor, .. } = keeper.acquire(Duration::from_secs(60)).await? else {
        return Err("somebody else leads".into());
    };
    let mut reader = log.reader(&name).await?;
    let difference = reader.next_difference(&cursor.base).await?.ok_or("the history is not seen")?;
    let stored = keeper.checkpoint(lease.epoch, &Cursor::at(difference.head), &[]).await?;
    let released = keeper.release(lease.epoch).await?;
    if (stored, released) == (Fenced::Held, Fenced::Held) { Ok(()) } else { Err("the lease was lost".into()) }
}

async fn remove(database: &Database, way: Way) -> Result<(), Failure> {
    match way {
        Way::Nothing => tokio::time::sleep(AROUND).await,
        Way::Segment => {
            let history =
                retention::open(database.url.as_str(), Source::new("/bench")?, LogOptions::default())?;
            let expired = history.expire(Duration::ZERO).await?;
            if expired.segments == 0 {
                return Err(
                    format!("no segment was emptied: {:?}", history.segments(Duration::ZERO).await?).into()
                );
            }
        }
        Way::Delete => delete(database).await?,
    }
    Ok(())
}

/// Deletes rows in the usual and gentle way: in chunks of one segment, by their `ctid`.
async fn delete(database: &Database) -> Result<(), Failure> {
    let mut connection = database.connect().await?;
    let segment: String = sqlx::query_scalar(
        "SELECT tableoid::regclass::text FROM outbox_message WHERE id = (SELECT min(id) FROM outbox_message)",
    )
    .fetch_one(&mut connection)
    .await?;
    let chunk =
        format!("DELETE FROM {segment} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {segment} LIMIT {CHUNK}))");
    while sqlx::query(AssertSqlSafe(chunk.clone())).execute(&mut connection).await?.rows_affected() > 0 {
        tokio::time::sleep(PAUSE).await;
    }
    sqlx::query(AssertSqlSafe(format!("VACUUM {segment}"))).execute(&mut connection).await?;
    Ok(())
}
