//! The cost of idempotency keys: the same web service with and without the layer, in turns.
//!
//! All variants are axum on a socket of this machine. *Bare* begins and commits its own
//! transaction. *Keyed* gets it from the layer, which claims the key in it and stores the answer.
//! Two more put the figures into proportion. *Asked* is bare with a statement that does nothing
//! before the handler, and another one after it: any layer that asks and then reports costs that
//! much. *By hand* is the minimum that keys can cost: an INSERT before the handler and an UPDATE
//! after it, without lease, expiry, takeover or replay of headers. Every request is a new one.

mod client;
mod service;

use std::time::{Duration, Instant};

use migrations::{Line, Migrator};
use sqlx::{Connection, Executor, PgConnection, Postgres};

use crate::Failure;
use crate::cli::Run;
use crate::report::{Report, Spread};
use crate::rig::Database;

/// The size of the measurement.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Requests of each turn (default 10,000).
    #[arg(long)]
    requests: Option<usize>,
    /// Connections that send one request after the other (default 16).
    #[arg(long)]
    clients: Option<usize>,
}

/// The way in which the handler is wrapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    Bare,
    Asked,
    ByHand,
    Keyed,
}

/// The work of the handler in its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handler {
    /// The minimum: one order and one outbox message.
    Order,
    /// A shop's checkout: looks up the customer, takes three articles from the stock, writes the
    /// order, its lines and the message.
    Checkout,
}

/// Requests per second of each variant, one figure for each round.
type Series = [Vec<f64>; Variant::ALL.len()];

pub(crate) async fn run(run: &Run, args: &Args) -> Result<Report, Failure> {
    let requests = args.requests.unwrap_or(if run.options.quick { 300 } else { 10_000 });
    let clients = args.clients.unwrap_or(16);
    let database = Database::create().await?;
    let measured = measure(run, &database.url, requests, clients).await;
    database.drop().await?;
    let mut report = Report::new("idempotency");
    let mut rows = Vec::new();
    for (handler, [bare, asked, by_hand, keyed]) in Handler::ALL.into_iter().zip(measured?) {
        let ratio = Spread::of_ratios(&keyed, &bare);
        rows.push([
            handler.statements().into(),
            Spread::of(&bare).into(),
            Spread::of(&keyed).into(),
            ratio.into(),
            Spread::of_ratios(&asked, &bare).into(),
            Spread::of_ratios(&by_hand, &bare).into(),
            Spread::of_ratios(&keyed, &by_hand).into(),
        ]);
        report.at_least(format!("keyed / bare, {}", handler.name()), 0.8, ratio.median);
    }
    report.table(
        format!("requests per second over HTTP, {requests} a turn from {clients} connections; statements include BEGIN and COMMIT"),
        [
            "handler's statements",
            "bare",
            "keyed",
            "keyed / bare",
            "asked / bare",
            "by hand / bare",
            "keyed / by hand",
        ],
        rows,
    );
    Ok(report)
}

async fn measure(
    run: &Run,
    url: &str,
    requests: usize,
    clients: usize,
) -> Result<[Series; Handler::ALL.len()], Failure> {
    let rounds = run.options.rounds(5);
    let progress = run.progress(Handler::ALL.len() * Variant::ALL.len() * (rounds + 1))?;
    prepare(url).await?;
    let service = service::start(url, clients).await?;
    let mut measured: [Series; Handler::ALL.len()] = Default::default();
    // The first round warms up connections, statements and tables, and is not counted.
    for round in 0..=rounds {
        for (handler, series) in Handler::ALL.into_iter().zip(&mut measured) {
            for turn in 0..Variant::ALL.len() {
                let at = (round + turn) % Variant::ALL.len();
                let variant = Variant::ALL[at];
                progress.set_message(format!("{handler:?}, {variant:?}, round {round}"));
                let requests = if round == 0 { requests.min(500) } else { requests };
                let began = Instant::now();
                client::send(service.address, variant.path(handler), requests, clients).await?;
                let rate = requests as f64 / began.elapsed().max(Duration::from_micros(1)).as_secs_f64();
                if round > 0 {
                    series[at].push(rate);
                }
                progress.inc(1);
            }
        }
    }
    progress.finish_and_clear();
    service.stop().await;
    check(url, rounds * requests + requests.min(500)).await?;
    Ok(measured)
}

impl Variant {
    const ALL: [Self; 4] = [Self::Bare, Self::Asked, Self::ByHand, Self::Keyed];

    fn path(self, handler: Handler) -> &'static str {
        match (handler, self) {
            (Handler::Order, Self::Bare) => "/order/bare",
            (Handler::Order, Self::Asked) => "/order/asked",
            (Handler::Order, Self::ByHand) => "/order/by-hand",
            (Handler::Order, Self::Keyed) => "/order/keyed",
            (Handler::Checkout, Self::Bare) => "/checkout/bare",
            (Handler::Checkout, Self::Asked) => "/checkout/asked",
            (Handler::Checkout, Self::ByHand) => "/checkout/by-hand",
            (Handler::Checkout, Self::Keyed) => "/checkout/keyed",
        }
    }
}

impl Handler {
    const ALL: [Self; 2] = [Self::Order, Self::Checkout];

    fn name(self) -> &'static str {
        match self {
            Self::Order => "order",
            Self::Checkout => "checkout",
        }
    }

    fn statements(self) -> &'static str {
        match self {
            Self::Order => "4 (an order)",
            Self::Checkout => "11 (a checkout)",
        }
    }
}

/// Creates the tables that are needed in addition to those of the outbox.
async fn prepare(url: &str) -> Result<(), Failure> {
    let mut connection = PgConnection::connect(url).await?;
    Migrator::<Postgres>::new(Line::Idempotency).up(&mut connection).await?;
    connection.execute(service::TABLES).await?;
    connection.close().await?;
    Ok(())
}

/// Checks the rows: a benchmark that did not do its work measures nothing.
async fn check(url: &str, each: usize) -> Result<(), Failure> {
    let mut connection = PgConnection::connect(url).await?;
    let found: (i64, i64, i64, i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM outbox_message), \
         (SELECT count(*) FROM order_lines), (SELECT count(*) FROM key_by_hand WHERE response IS NOT NULL), \
         (SELECT count(*) FROM idempotency_key WHERE state = 'succeeded')",
    )
    .fetch_one(&mut connection)
    .await?;
    connection.close().await?;
    let each = i64::try_from(each)?;
    let expected = (8 * each, 8 * each, 12 * each, 2 * each, 2 * each);
    if found == expected {
        return Ok(());
    }
    Err(format!("expected {expected:?} orders, messages, lines, keys by hand and keys; found {found:?}")
        .into())
}
