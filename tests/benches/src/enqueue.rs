//! A business transaction with the outbox, against the same transaction with a plain INSERT of the
//! same rows.

use std::time::{Duration, Instant};

use outbox::{EnqueueError, NewMessage, Outbox, OutboxTransaction};
use sqlx::{PgPool, Postgres};
use tokio::task::JoinSet;

use crate::Failure;
use crate::cli::Run;
use crate::report::{Report, Spread};
use crate::rig::{Database, Wal, turns};

const ACCOUNTS: i64 = 10_000;
const PAYLOAD: usize = 256;

/// The cases to measure.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Number of concurrent clients; several with commas (default 1, 8, 32, 64).
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=90))]
    clients: Vec<u32>,
    /// Duration of each turn, in seconds.
    #[arg(long)]
    seconds: Option<f64>,
}

/// A case: statements and messages of each transaction, and the number of clients.
#[derive(Debug, Clone, Copy)]
struct Case {
    statements: u32,
    clients: u32,
    messages: u32,
}

/// The figures of one turn.
#[derive(Debug, Clone, Copy)]
struct Turn {
    transactions_per_second: f64,
    wal_per_message: f64,
    syncs_per_commit: f64,
}

pub(crate) async fn run(run: &Run, args: &Args) -> Result<Report, Failure> {
    let clients = match (args.clients.as_slice(), run.options.quick) {
        ([], true) => vec![8],
        ([], false) => vec![1, 8, 32, 64],
        (clients, _) => clients.to_vec(),
    };
    let length = Duration::from_secs_f64(args.seconds.unwrap_or(if run.options.quick { 0.5 } else { 3.0 }));
    let rounds = run.options.rounds(5);
    let cases: Vec<Case> = [1, 5]
        .into_iter()
        .flat_map(|statements| [1, 10].map(|messages| (statements, messages)))
        .flat_map(|(statements, messages)| {
            clients.iter().map(move |&clients| Case { statements, clients, messages })
        })
        .collect();
    let database = Database::create().await?;
    database
        .run(
            "CREATE TABLE account (id bigint PRIMARY KEY, cents bigint NOT NULL) WITH (fillfactor = 50); \
             INSERT INTO account SELECT n, 0 FROM generate_series(0, 9999) AS n; ANALYZE account",
        )
        .await?;
    let progress = run.progress(cases.len() * rounds * 2)?;
    let mut all = Vec::new();
    for case in cases {
        let mut seen = [Vec::new(), Vec::new()];
        for round in 0..rounds {
            for toolkit in turns(round) {
                progress.set_message(format!(
                    "{} clients, {} statements, {} messages, {}",
                    case.clients,
                    case.statements,
                    case.messages,
                    if toolkit { "toolkit" } else { "plain" }
                ));
                seen[usize::from(toolkit)].push(turn(&database, case, toolkit, length).await?);
                progress.inc(1);
            }
        }
        all.push((case, seen));
    }
    progress.finish_and_clear();
    database.drop().await?;
    Ok(report(&all))
}

fn report(all: &[(Case, [Vec<Turn>; 2])]) -> Report {
    let mut report = Report::new("enqueue");
    let ratio = |[plain, toolkit]: &[Vec<Turn>; 2], what: fn(&Turn) -> f64| {
        let figures = |turns: &[Turn]| turns.iter().map(what).collect::<Vec<_>>();
        (
            Spread::of(&figures(plain)),
            Spread::of(&figures(toolkit)),
            Spread::of_ratios(&figures(toolkit), &figures(plain)),
        )
    };
    let mut rows = Vec::new();
    let (mut slowest, mut wal_most, mut syncs_most) = (f64::MAX, f64::MIN, f64::MIN);
    for (case, turns) in all {
        let (plain, toolkit, speed) = ratio(turns, |turn| turn.transactions_per_second);
        let (_, wal, wal_ratio) = ratio(turns, |turn| turn.wal_per_message);
        let (_, _, syncs_ratio) = ratio(turns, |turn| turn.syncs_per_commit);
        slowest = slowest.min(speed.median);
        wal_most = wal_most.max(wal_ratio.median);
        syncs_most = syncs_most.max(syncs_ratio.median);
        rows.push([
            case.statements.into(),
            case.messages.into(),
            case.clients.into(),
            plain.into(),
            toolkit.into(),
            speed.into(),
            wal.median.into(),
            wal_ratio.median.into(),
            syncs_ratio.median.into(),
        ]);
    }
    report.table(
        "transactions per second; plain = the same rows with hand-written INSERTs; WAL is that of the whole transaction",
        [
            "statements",
            "messages",
            "clients",
            "plain",
            "toolkit",
            "toolkit / plain",
            "WAL bytes per message",
            "WAL, toolkit / plain",
            "syncs per commit, toolkit / plain",
        ],
        rows,
    );
    report.at_least("throughput, toolkit / plain, slowest case", 0.9, slowest);
    report.at_most("WAL per message, toolkit / plain, largest case", 1.1, wal_most);
    report.at_most("syncs per commit, toolkit / plain, largest case", 1.1, syncs_most);
    report
}

async fn turn(database: &Database, case: Case, toolkit: bool, length: Duration) -> Result<Turn, Failure> {
    // The first write of a page after a checkpoint logs a full-page image. With a checkpoint before
    // each turn, all turns pay for these alike.
    for sql in ["TRUNCATE outbox_message", "UPDATE account SET cents = 0", "VACUUM account", "CHECKPOINT"] {
        database.run(sql).await?;
    }
    let pool = outbox::pool_options::<Postgres>()
        .min_connections(case.clients)
        .max_connections(case.clients)
        .connect(&database.url)
        .await?;
    let outbox = Outbox::<Postgres>::new();
    let wal = Wal::now(database).await?;
    let until = Instant::now() + length;
    let began = Instant::now();
    let mut clients = JoinSet::new();
    for client in 0..case.clients {
        let (pool, outbox) = (pool.clone(), outbox.clone());
        clients.spawn(async move {
            let mut done = 0_u64;
            let mut account = i64::from(client) * 131;
            while Instant::now() < until {
                account = (account * 7 + 11).rem_euclid(ACCOUNTS);
                if toolkit {
                    with_outbox(&outbox, &pool, case, account).await?;
                } else {
                    plain(&pool, case, account).await?;
                }
                done += 1;
            }
            Ok::<_, Failure>(done)
        });
    }
    let mut transactions = 0;
    while let Some(done) = clients.join_next().await {
        transactions += done??;
    }
    let took = began.elapsed();
    // Sessions report their syncs when they end.
    pool.close().await;
    let wal = wal.since(database).await?;
    let transactions = transactions as f64;
    Ok(Turn {
        transactions_per_second: transactions / took.as_secs_f64(),
        wal_per_message: wal.bytes / transactions / f64::from(case.messages),
        syncs_per_commit: wal.syncs / transactions,
    })
}

const BUSINESS: &str = "UPDATE account SET cents = cents + $2 WHERE id = $1";

fn payload() -> Vec<u8> {
    vec![b'x'; PAYLOAD]
}

async fn with_outbox(
    outbox: &Outbox<Postgres>,
    pool: &PgPool,
    case: Case,
    account: i64,
) -> Result<(), Failure> {
    outbox
        .transaction(pool, async move |tx: &mut OutboxTransaction<Postgres>| {
            for statement in 0..i64::from(case.statements) {
                let id = (account + statement).rem_euclid(ACCOUNTS);
                sqlx::query(BUSINESS).bind(id).bind(1_i64).execute(tx.connection()).await?;
            }
            for _ in 0..case.messages {
                let message = NewMessage::new("orders")
                    .kind("order.placed")
                    .key(format!("account-{account}"))
                    .payload(payload());
                tx.stage(message)?;
            }
            Ok::<_, EnqueueError>(())
        })
        .await?;
    Ok(())
}

/// Enqueues like a program without the library: one INSERT for all messages, with ids made by the
/// program.
async fn plain(pool: &PgPool, case: Case, account: i64) -> Result<(), Failure> {
    const INSERT: &str = "INSERT INTO outbox_message (message_id, topic, key, kind, content_type, payload) \
        SELECT id, 'orders', $2, 'order.placed', 'application/octet-stream', $3 FROM unnest($1::uuid[]) AS id";
    let mut tx = pool.begin().await?;
    for statement in 0..i64::from(case.statements) {
        let id = (account + statement).rem_euclid(ACCOUNTS);
        sqlx::query(BUSINESS).bind(id).bind(1_i64).execute(&mut *tx).await?;
    }
    let ids: Vec<uuid::Uuid> = (0..case.messages).map(|_| uuid::Uuid::now_v7()).collect();
    let key = format!("account-{account}");
    sqlx::query(INSERT).bind(ids).bind(key).bind(payload()).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(())
}
