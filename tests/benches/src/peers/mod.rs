//! Other ways to relay an outbox, in their usual form, with the same table contents, broker and
//! machine.
//!
//! Each is measured twice: how fast it drains a backlog, and what happens to messages while sixteen
//! writers pause inside their transactions. A poller reads a batch, publishes it, waits for every
//! confirmation and records that, batch by batch.

mod debezium;
mod disorder;
mod poller;

use std::time::Duration;

use engine::EngineOptions;

use crate::Failure;
use crate::cli::Run;
use crate::report::{Report, Spread};
use crate::rig::{Database, Shape, drain};
use crate::target::{Kafka, Target as _, backlog, fresh_topic};
use debezium::Tuning;
use disorder::Seen;

/// The size of the measurement.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Number of entries in the backlog (default 100,000).
    #[arg(long)]
    messages: Option<u32>,
    /// How long the writers write, in seconds.
    #[arg(long)]
    seconds: Option<f64>,
}

/// A relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    Toolkit,
    /// `WHERE status = 0 … FOR UPDATE SKIP LOCKED`, then an UPDATE of each row.
    Status,
    /// `WHERE xid < pg_snapshot_xmin(…) ORDER BY xid, id`.
    XminHorizon,
    /// `WHERE id > last ORDER BY id`.
    IdCursor,
    /// Change data capture: logical decoding, Kafka Connect.
    Debezium(Tuning),
}

impl Peer {
    const POLLING: [Self; 4] = [Self::Toolkit, Self::Status, Self::XminHorizon, Self::IdCursor];

    /// Returns the available peers: Debezium needs a server with logical decoding.
    fn all() -> impl Iterator<Item = Self> {
        let debezium = debezium::jars().map(|_| [Tuning::Defaults, Tuning::Throughput].map(Self::Debezium));
        Self::POLLING.into_iter().chain(debezium.into_iter().flatten())
    }

    fn name(self) -> &'static str {
        match self {
            Self::Toolkit => "this toolkit",
            Self::Status => "status column, SKIP LOCKED",
            Self::XminHorizon => "xmin horizon",
            Self::IdCursor => "id cursor",
            Self::Debezium(Tuning::Defaults) => "Debezium 3.3, Kafka Connect, defaults",
            Self::Debezium(Tuning::Throughput) => "Debezium 3.3, Kafka Connect, tuned",
        }
    }
}

struct Found {
    peer: Peer,
    rates: Vec<f64>,
    seen: Seen,
}

pub(crate) async fn run(run: &Run, args: &Args) -> Result<Report, Failure> {
    let quick = run.options.quick;
    let messages = args.messages.unwrap_or(if quick { 5_000 } else { 100_000 });
    let writing = Duration::from_secs_f64(args.seconds.unwrap_or(if quick { 1.0 } else { 20.0 }));
    let rounds = run.options.rounds(5);
    let kafka = Kafka::from_environment()?;
    let progress = run.progress(Peer::all().count() * (rounds + 1))?;
    let mut found = Vec::new();
    for peer in Peer::all() {
        progress.set_message(format!("{}: sixteen writers", peer.name()));
        found.push(Found { peer, rates: Vec::new(), seen: disorder::watch(peer, &kafka, writing).await? });
        progress.inc(1);
    }
    let database = Database::create().await?;
    for round in 0..rounds {
        for turn in 0..found.len() {
            let which = (turn + round) % found.len();
            let peer = found[which].peer;
            progress.set_message(format!("{}: draining", peer.name()));
            let rate = rate(peer, &database, &kafka, messages, run).await?;
            found[which].rates.push(rate);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    database.drop().await?;
    Ok(report(&found, messages))
}

fn report(found: &[Found], messages: u32) -> Report {
    let mut report = Report::new("peers");
    let ours = found.iter().find(|one| one.peer == Peer::Toolkit).map_or(&[][..], |one| &one.rates);
    report.table(
        format!(
            "a backlog of {messages} × 256 B to Kafka; sixteen writers with pauses inside their transactions{}",
            left_out()
        ),
        [
            "relay",
            "messages per second",
            "this toolkit / it",
            "committed",
            "lost",
            "out of order",
            "published twice",
        ],
        found.iter().map(|Found { peer, rates, seen }| {
            [
                peer.name().into(),
                Spread::of(rates).into(),
                Spread::of_ratios(ours, rates).into(),
                seen.committed.into(),
                seen.lost.into(),
                seen.disordered.into(),
                seen.repeated.into(),
            ]
        }),
    );
    let peers = || found.iter().filter(|one| one.peer != Peer::Toolkit);
    let best = peers()
        .filter(|one| one.seen.is_sound())
        .map(|one| Spread::of_ratios(ours, &one.rates).median)
        .fold(f64::NAN, f64::min);
    report.at_least("throughput / that of the best peer that lost and reordered nothing", 3.0, best);
    for Found { seen, .. } in found.iter().filter(|one| one.peer == Peer::Toolkit) {
        report.at_most("lost by this toolkit", 0.0, seen.lost as f64);
        report.at_most("put out of order by this toolkit", 0.0, seen.disordered as f64);
    }
    report
}

/// Names the peer that this run had to skip, if any.
fn left_out() -> String {
    if debezium::jars().is_some() {
        return String::new();
    }
    let variable = harness::connect::JARS_VARIABLE;
    format!("; NOT MEASURED: Debezium ({variable} is not set, or the server's wal_level is not logical)")
}

async fn rate(
    peer: Peer,
    database: &Database,
    kafka: &Kafka,
    messages: u32,
    run: &Run,
) -> Result<f64, Failure> {
    let shape = Shape { messages, payload_bytes: 256, keys: 100_000 };
    let topic = if peer == Peer::Toolkit {
        backlog(database, kafka, shape).await?
    } else {
        let topic = fresh_topic();
        kafka.prepare(&topic).await?;
        poller::prepare(peer, database).await?;
        topic
    };
    let took = match peer {
        Peer::Toolkit => {
            drain(database, kafka.connector()?, EngineOptions::default(), messages.into(), &run.published)
                .await?
        }
        Peer::Debezium(tuning) => debezium::drain(database, kafka, &topic, shape, tuning).await?,
        Peer::Status | Peer::XminHorizon | Peer::IdCursor => {
            poller::drain(peer, database, kafka, &topic, shape).await?
        }
    };
    kafka.remove(&topic).await?;
    Ok(f64::from(messages) / took.as_secs_f64())
}
