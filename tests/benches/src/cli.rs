//! The command line: which benchmarks run, for how long, and how results are printed.

use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, Parser, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use crate::environment::Environment;
use crate::report::Report;
use crate::rig::Published;
use crate::{
    Failure, enqueue, idempotency, inbox_guard, latency, peers, relay_drain, relay_flat, relay_handover,
    relay_idle, relay_memory, relay_parked, relay_transactions, retention, saga_steps,
};

/// Runs benchmarks: all of them, or one by name. The addresses of services come from the
/// environment (`cargo xtask bench` starts the services and sets it).
#[derive(Debug, Parser)]
#[command(name = "bench", version)]
struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    bench: Option<Bench>,
}

/// Options of every benchmark.
#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    /// One short round, to show that the benchmarks work. Targets are not judged.
    #[arg(long, global = true)]
    pub(crate) quick: bool,
    /// Number of rounds of each comparison.
    #[arg(long, global = true)]
    rounds: Option<usize>,
    /// The format of the results.
    #[arg(long, global = true, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// The folder for plots as PNG files; no plots by default.
    #[arg(long, global = true)]
    pub(crate) plots: Option<PathBuf>,
}

impl Options {
    pub(crate) fn rounds(&self, usual: usize) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { usual })
    }
}

/// The format of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Table,
    /// For machines: one object for each benchmark, one per line.
    Json,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Drains a backlog from PostgreSQL to each broker, against a SELECT and a producer without
    /// bookkeeping.
    #[command(name = "relay_drain")]
    RelayDrain(relay_drain::Args),
    /// Drains a backlog to Kafka in transactions, against the same without transactions.
    #[command(name = "relay_transactions")]
    RelayTransactions(relay_transactions::Args),
    /// Buffers that a page costs, for any length of backlog and history, and beside pinned
    /// transactions.
    #[command(name = "relay_flat")]
    RelayFlat(relay_flat::Args),
    /// Resident memory of the relay, for several backlogs and payloads.
    #[command(name = "relay_memory")]
    RelayMemory,
    /// Parked entries: held rows drained under load, another key beside a dead one, and the memory
    /// of a million of them.
    #[command(name = "relay_parked")]
    RelayParked(relay_parked::Args),
    /// How long messages are delayed when the leader is asked to end, under load.
    #[command(name = "relay_handover")]
    RelayHandover,
    /// Processor time, WAL and memory of the relay when there is nothing to do.
    #[command(name = "relay_idle")]
    RelayIdle,
    /// The time from a message's commit to the broker, and to the consumer's commit, under
    /// open-loop load.
    Latency(latency::Args),
    /// A business transaction with the outbox against the same with a plain INSERT.
    Enqueue(enqueue::Args),
    /// A handler's transaction with the inbox against the same without the inbox.
    Inbox(inbox_guard::Args),
    /// A web service with idempotency keys against the same without keys.
    Idempotency(idempotency::Args),
    /// Sagas of local steps against the same statements by hand.
    Saga(saga_steps::Args),
    /// Latency and throughput of producers while a segment is emptied, against rows that are
    /// deleted.
    Retention,
    /// Other ways to relay an outbox: status column, xmin horizon, id cursor.
    Peers(peers::Args),
}

impl Bench {
    /// Returns every benchmark with its default arguments.
    fn all() -> Vec<Self> {
        vec![
            Self::RelayDrain(relay_drain::Args::default()),
            Self::RelayTransactions(relay_transactions::Args::default()),
            Self::RelayFlat(relay_flat::Args::default()),
            Self::RelayMemory,
            Self::RelayParked(relay_parked::Args::default()),
            Self::RelayIdle,
            Self::RelayHandover,
            Self::Latency(latency::Args::default()),
            Self::Enqueue(enqueue::Args::default()),
            Self::Inbox(inbox_guard::Args::default()),
            Self::Idempotency(idempotency::Args::default()),
            Self::Saga(saga_steps::Args::default()),
            Self::Retention,
            Self::Peers(peers::Args::default()),
        ]
    }

    /// Returns the name without the arguments.
    fn name(&self) -> String {
        let text = format!("{self:?}");
        text.split_once('(').map_or(text.as_str(), |(name, _)| name).to_owned()
    }

    async fn run(self, run: &Run) -> Result<Report, Failure> {
        match self {
            Self::RelayDrain(args) => relay_drain::run(run, &args).await,
            Self::RelayTransactions(args) => relay_transactions::run(run, &args).await,
            Self::RelayFlat(args) => relay_flat::run(run, &args).await,
            Self::RelayMemory => relay_memory::run(run).await,
            Self::RelayParked(args) => relay_parked::run(run, &args).await,
            Self::RelayIdle => relay_idle::run(run).await,
            Self::RelayHandover => relay_handover::run(run).await,
            Self::Latency(args) => latency::run(run, &args).await,
            Self::Enqueue(args) => enqueue::run(run, &args).await,
            Self::Inbox(args) => inbox_guard::run(run, &args).await,
            Self::Idempotency(args) => idempotency::run(run, &args).await,
            Self::Saga(args) => saga_steps::run(run, &args).await,
            Self::Retention => retention::run(run).await,
            Self::Peers(args) => peers::run(run, &args).await,
        }
    }
}

/// The options of a run, and what its benchmarks share.
pub(crate) struct Run {
    pub(crate) options: Options,
    /// The messages that relays in this process have published.
    pub(crate) published: Published,
}

impl Run {
    /// Returns a progress bar on standard error for this many steps.
    pub(crate) fn progress(&self, steps: usize) -> Result<ProgressBar, Failure> {
        let bar = ProgressBar::new(steps as u64);
        bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}")?);
        Ok(bar)
    }
}

pub(crate) async fn run() -> Result<(), Failure> {
    let Cli { options, bench } = Cli::parse();
    let run = Run { options, published: Published::install()? };
    let environment = Environment::look().await?;
    let benches = bench.map_or_else(Bench::all, |one| vec![one]);
    let mut missed = Vec::new();
    let mut failed = Vec::new();
    for bench in benches {
        let begun = Instant::now();
        let name = bench.name();
        let report = match bench.run(&run).await {
            Ok(report) => report.quick(run.options.quick),
            // The other benchmarks can still run.
            Err(error) => {
                failed.push(format!("{name}: {error}"));
                continue;
            }
        };
        if let Some(folder) = &run.options.plots {
            report.draw(folder)?;
        }
        match run.options.output {
            Output::Table => report.print(&environment, begun.elapsed()),
            Output::Json => println!("{}", report.json(&environment, begun.elapsed())),
        }
        missed.extend(report.missed());
    }
    for target in missed {
        eprintln!("target missed: {target}");
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n").into()) }
}
