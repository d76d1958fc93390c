//! How fast a backlog leaves PostgreSQL, against the bare parts.
//!
//! *Bare* reads the same rows with one plain SELECT, in pages by id, and hands them to the broker's client library
//! pipelined, with as many bytes of headers on the wire, confirmations counted and nothing stored. *Relay* is the engine with its adapter, lease, cursor and
//! checkpoints. Both start cold (connect included) on a fresh topic, in turns.

mod kafka;
mod rabbitmq;
mod sqs;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use message::{Connector, Source};
use outbox::log::{LogOptions, RelayName};
use relay::engine::{Pipeline, Settings};
use sqlx::{Connection, PgConnection, Row};
use tokio_util::sync::CancellationToken;

use crate::backlog::{Database, Shape};
use crate::published::Published;
use crate::report::{self, Series};
use crate::{Failure, Output};

/// Rows per SELECT of the bare reader; the relay's default page.
const PAGE: i64 = 1_000;
/// How long nothing may happen before a round counts as failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Small backlogs and one round: shows that the benchmark works.
    #[arg(long)]
    quick: bool,
    /// Only these brokers.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Broker>,
    /// Rounds per broker.
    #[arg(long)]
    rounds: Option<usize>,
    /// Bytes of payload.
    #[arg(long, default_value_t = 256)]
    payload_bytes: u32,
    /// Different ordering keys.
    #[arg(long, default_value_t = 100_000)]
    keys: u32,
    /// Entries that the relay keeps in memory at most (default: the engine's).
    #[arg(long)]
    window_entries: Option<usize>,
    /// Bytes that the relay keeps in memory at most (default: the engine's).
    #[arg(long)]
    window_bytes: Option<usize>,
    /// Entries of the backlog (default: by broker).
    #[arg(long)]
    messages: Option<u32>,
    /// How results are printed.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

impl Args {
    fn settings(&self) -> Settings {
        let defaults = Settings::default();
        Settings {
            window_entries: self.window_entries.unwrap_or(defaults.window_entries),
            window_bytes: self.window_bytes.unwrap_or(defaults.window_bytes),
            ..defaults
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Broker {
    Kafka,
    Rabbitmq,
    Sqs,
}

/// One broker as the benchmark sees it.
#[async_trait]
trait Target: Send + Sync {
    /// Its name in the report.
    fn name(&self) -> &'static str;
    /// A fresh topic or queue.
    async fn prepare(&self, topic: &str) -> Result<(), Failure>;
    /// The toolkit's connector.
    fn connector(&self) -> Result<Arc<dyn Connector>, Failure>;
    /// Publishes all rows of the topic without any bookkeeping; returns how many were confirmed.
    async fn bare(&self, rows: Rows) -> Result<u64, Failure>;
    /// Removes the topic or queue.
    async fn remove(&self, topic: &str) -> Result<(), Failure>;
}

impl Broker {
    fn messages(self, quick: bool) -> u32 {
        match (self, quick) {
            (Self::Kafka, false) => 300_000,
            (Self::Rabbitmq, false) => 100_000,
            (Self::Sqs, false) => 20_000,
            (Self::Kafka, true) => 30_000,
            (Self::Rabbitmq, true) => 10_000,
            (Self::Sqs, true) => 2_000,
        }
    }

    fn target(self) -> Result<Box<dyn Target>, Failure> {
        Ok(match self {
            Self::Kafka => Box::new(kafka::Kafka::new(variable("OUTBOX_KAFKA_BROKERS")?)),
            Self::Rabbitmq => Box::new(rabbitmq::Rabbitmq::new(variable("OUTBOX_RABBITMQ_URL")?)),
            Self::Sqs => Box::new(sqs::Sqs::new(variable("OUTBOX_SQS_ENDPOINT")?)),
        })
    }
}

fn variable(name: &str) -> Result<String, Failure> {
    std::env::var(name).map_err(|_| {
        format!("{name} is not set; run `cargo xtask bench`, which starts the services and sets it").into()
    })
}

/// A row as the bare reader sees it.
struct BareRow {
    message_id: String,
    topic: String,
    key: String,
    payload: Vec<u8>,
}

impl BareRow {
    /// As many and as long attributes as a CloudEvent has, so that both sides put the same on the wire; constant
    /// but for id and key, so that making them costs nothing.
    fn attributes(&self) -> [(&'static str, &str); 7] {
        [
            ("ce_specversion", "1.0"),
            ("ce_id", &self.message_id),
            ("ce_source", "/bench"),
            ("ce_type", "bench.filled"),
            ("ce_time", "2026-03-01T12:00:00.123456Z"),
            ("ce_subject", &self.key),
            ("content-type", "application/octet-stream"),
        ]
    }

    /// The same as one JSON text.
    fn envelope(&self) -> String {
        let mut text = String::with_capacity(1_024);
        text.push('{');
        for (name, value) in self.attributes() {
            // Writing to a String cannot fail.
            let _ = write!(text, "\"{name}\":\"{value}\",");
        }
        let _ = write!(text, "\"data\":\"{}\"}}", String::from_utf8_lossy(&self.payload));
        text
    }
}

/// Reads the rows of one topic in pages by id.
struct Rows {
    connection: PgConnection,
    topic: String,
    after: i64,
}

impl Rows {
    async fn open(url: &str, topic: &str) -> Result<Self, Failure> {
        let mut connection = PgConnection::connect(url).await?;
        // The rounds before have left their rows: start where this one begins.
        let first: i64 = sqlx::query_scalar("SELECT min(id) FROM outbox_message WHERE topic = $1")
            .bind(topic)
            .fetch_one(&mut connection)
            .await?;
        Ok(Self { connection, topic: topic.to_owned(), after: first - 1 })
    }

    async fn next(&mut self) -> Result<Vec<BareRow>, Failure> {
        let rows = sqlx::query(
            "SELECT id, message_id::text, topic, key, payload FROM outbox_message WHERE id > $1 ORDER BY id LIMIT $2",
        )
        .bind(self.after)
        .bind(PAGE)
        .fetch_all(&mut self.connection)
        .await?;
        if let Some(last) = rows.last() {
            self.after = last.try_get(0)?;
        }
        let bare = |row: sqlx::postgres::PgRow| -> Result<BareRow, Failure> {
            Ok(BareRow {
                message_id: row.try_get(1)?,
                topic: row.try_get(2)?,
                key: row.try_get(3)?,
                payload: row.try_get(4)?,
            })
        };
        let page: Vec<BareRow> = rows.into_iter().map(bare).collect::<Result<_, _>>()?;
        Ok(page.into_iter().filter(|row| row.topic == self.topic).collect())
    }
}

/// Runs it.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let published = Published::install()?;
    let database = Database::create(&variable("OUTBOX_POSTGRES_URL")?).await?;
    let brokers = if args.only.is_empty() { Broker::value_variants().to_vec() } else { args.only.clone() };
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 5 });
    let progress = ProgressBar::new((brokers.len() * rounds * 2) as u64);
    progress.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")?);
    let mut all = Vec::new();
    for broker in brokers {
        let shape = Shape {
            messages: args.messages.unwrap_or_else(|| broker.messages(args.quick)),
            payload_bytes: args.payload_bytes,
            keys: args.keys,
        };
        let target = broker.target()?;
        let mut series = Series { broker: target.name(), shape, bare: Vec::new(), relay: Vec::new() };
        for round in 0..rounds {
            // In turns, and each of them first every other time.
            let mut turns = [false, true];
            turns.rotate_left(round % 2);
            for through_relay in turns {
                let what = if through_relay { "relay" } else { "bare" };
                progress.set_message(format!("{} {what}, round {}", series.broker, round + 1));
                let turn = through_relay.then(|| args.settings());
                let rate = measure(&database, &*target, shape, turn, &published).await?;
                if through_relay {
                    series.relay.push(rate);
                } else {
                    series.bare.push(rate);
                }
                progress.inc(1);
            }
        }
        all.push(series);
    }
    progress.finish_and_clear();
    let version = database.version().await?;
    database.drop().await?;
    print(&all, &version, args.output)
}

/// One turn: messages per second.
async fn measure(
    database: &Database,
    target: &dyn Target,
    shape: Shape,
    through_relay: Option<Settings>,
    published: &Published,
) -> Result<f64, Failure> {
    let topic = format!("bench-{}", uuid::Uuid::now_v7().simple());
    target.prepare(&topic).await?;
    database.fill(&topic, shape).await?;
    let took = if let Some(settings) = through_relay {
        drain(database, target.connector()?, settings, u64::from(shape.messages), published).await?
    } else {
        let started = Instant::now();
        let confirmed = target.bare(Rows::open(&database.url, &topic).await?).await?;
        if confirmed != u64::from(shape.messages) {
            return Err(format!("bare {}: {confirmed} of {} confirmed", target.name(), shape.messages).into());
        }
        let took = started.elapsed();
        skip(database).await?;
        took
    };
    target.remove(&topic).await?;
    Ok(f64::from(shape.messages) / took.as_secs_f64())
}

const RELAY: &str = "bench";

async fn drain(
    database: &Database,
    connector: Arc<dyn Connector>,
    settings: Settings,
    messages: u64,
    published: &Published,
) -> Result<Duration, Failure> {
    let store = outbox::log::open(&database.url, Source::new("/bench")?, LogOptions::default())?;
    let pipeline = Pipeline::new(RelayName::new(RELAY)?, store, connector, settings);
    let stop = CancellationToken::new();
    let target = published.count() + messages;
    let started = Instant::now();
    let running = tokio::spawn(pipeline.run(stop.clone()));
    let reached = published.reach(target, PATIENCE).await;
    let took = started.elapsed();
    stop.cancel();
    running.await?;
    reached.map(|()| took)
}

/// The rows of a bare turn are behind the relay as well, as if it had published them.
async fn skip(database: &Database) -> Result<(), Failure> {
    let mut connection = PgConnection::connect(&database.url).await?;
    sqlx::query("TRUNCATE outbox_message").execute(&mut connection).await?;
    Ok(())
}

fn print(series: &[Series], postgres: &str, output: Output) -> Result<(), Failure> {
    let cores = std::thread::available_parallelism()?.get();
    match output {
        Output::Table => {
            println!("{}", report::table(series));
            println!(
                "medians; ratio = relay / bare of the same round; PostgreSQL {postgres}, {cores} cores, \
                 all services on this machine"
            );
        }
        Output::Json => {
            let series: Vec<_> =
                series.iter().map(|one| serde_json::json!({ "series": one, "ratio": one.ratio() })).collect();
            println!(
                "{}",
                serde_json::json!({ "bench": "relay_drain", "postgres": postgres, "cores": cores, "brokers": series })
            );
        }
    }
    Ok(())
}
