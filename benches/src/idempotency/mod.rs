//! What idempotency keys cost: the same web service with and without the layer, in turns.
//!
//! All are axum on a socket of this machine with the same handler: one order and one outbox message in one transaction.
//! *Bare* begins and commits it by itself. *Keyed* gets it from the layer, which claims the key in it and stores the
//! answer. *By hand* is what keys cost at the least: an INSERT before the handler and an UPDATE after it, without lease, expiry,
//! takeover or replay of headers. Every request is a new one.

mod client;
mod service;

use std::time::{Duration, Instant};

use migrations::{Line, Migrator};
use sqlx::{Connection, Executor, PgConnection, Postgres};

use crate::Failure;
use crate::cli::Run;
use crate::report::{Report, Spread};
use crate::rig::Database;

/// What to measure.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Requests of each turn (default 20,000).
    #[arg(long)]
    requests: Option<usize>,
    /// Connections that send one request after the other (default 16).
    #[arg(long)]
    clients: Option<usize>,
}

/// Requests per second, one figure a round.
#[derive(Debug, Default)]
struct Series {
    bare: Vec<f64>,
    by_hand: Vec<f64>,
    keyed: Vec<f64>,
}

/// What is around the handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    Bare,
    ByHand,
    Keyed,
}

pub(crate) async fn run(run: &Run, args: &Args) -> Result<Report, Failure> {
    let requests = args.requests.unwrap_or(if run.options.quick { 500 } else { 20_000 });
    let clients = args.clients.unwrap_or(16);
    let database = Database::create().await?;
    let measured = measure(run, &database.url, requests, clients).await;
    database.drop().await?;
    let Series { bare, by_hand, keyed } = measured?;
    let ratio = Spread::of_ratios(&keyed, &bare);
    let mut report = Report::new("idempotency");
    report.table(
        "requests per second: one order and one outbox message in one transaction, over HTTP",
        [
            "clients",
            "requests",
            "bare",
            "by hand",
            "keyed",
            "by hand / bare",
            "keyed / bare",
            "keyed / by hand",
        ],
        [[
            clients.into(),
            requests.into(),
            Spread::of(&bare).into(),
            Spread::of(&by_hand).into(),
            Spread::of(&keyed).into(),
            Spread::of_ratios(&by_hand, &bare).into(),
            ratio.into(),
            Spread::of_ratios(&keyed, &by_hand).into(),
        ]],
    );
    report.at_least("keyed / bare", 0.8, ratio.median);
    Ok(report)
}

async fn measure(run: &Run, url: &str, requests: usize, clients: usize) -> Result<Series, Failure> {
    let rounds = run.options.rounds(5);
    let progress = run.progress(Variant::ALL.len() * (rounds + 1))?;
    prepare(url).await?;
    let service = service::start(url, clients).await?;
    let mut series = Series::default();
    // The first round of each warms up connections, statements and tables, and is not counted.
    for round in 0..=rounds {
        for turn in 0..Variant::ALL.len() {
            let variant = Variant::ALL[(round + turn) % Variant::ALL.len()];
            progress.set_message(format!("{variant:?}, round {round}"));
            let requests = if round == 0 { requests.min(500) } else { requests };
            let began = Instant::now();
            client::send(service.address, variant.path(), requests, clients).await?;
            let rate = requests as f64 / began.elapsed().max(Duration::from_micros(1)).as_secs_f64();
            match variant {
                _ if round == 0 => {}
                Variant::Bare => series.bare.push(rate),
                Variant::ByHand => series.by_hand.push(rate),
                Variant::Keyed => series.keyed.push(rate),
            }
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    service.stop().await;
    check(url, rounds * requests + requests.min(500)).await?;
    Ok(series)
}

impl Variant {
    const ALL: [Self; 3] = [Self::Bare, Self::ByHand, Self::Keyed];

    fn path(self) -> &'static str {
        match self {
            Self::Bare => "/bare",
            Self::ByHand => "/by-hand",
            Self::Keyed => "/keyed",
        }
    }
}

/// The tables beside those of the outbox.
async fn prepare(url: &str) -> Result<(), Failure> {
    let mut connection = PgConnection::connect(url).await?;
    Migrator::<Postgres>::new(Line::Idempotency).up(&mut connection).await?;
    connection.execute(service::TABLES).await?;
    connection.close().await?;
    Ok(())
}

/// A benchmark that did not do its work measures nothing.
async fn check(url: &str, each: usize) -> Result<(), Failure> {
    let mut connection = PgConnection::connect(url).await?;
    let counts: (i64, i64, i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM outbox_message), \
         (SELECT count(*) FROM key_by_hand WHERE response IS NOT NULL), \
         (SELECT count(*) FROM idempotency_key WHERE state = 'succeeded')",
    )
    .fetch_one(&mut connection)
    .await?;
    connection.close().await?;
    let each = i64::try_from(each)?;
    if counts == (3 * each, 3 * each, each, each) {
        return Ok(());
    }
    Err(format!("expected {} orders and messages, and {each} keys of each kind; found {counts:?}", 3 * each)
        .into())
}
