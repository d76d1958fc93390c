//! Benchmarks on real services. Each compares the toolkit with its bare parts in the same run, interleaved, and
//! reports ratios with their spread: absolute figures depend on the machine and its neighbours.

mod backlog;
mod published;
mod relay_drain;
mod report;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Runs a benchmark; the services' addresses come from the environment (`cargo xtask services env`).
#[derive(Debug, Parser)]
#[command(name = "bench", version)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Drains a backlog from PostgreSQL to each broker, against SELECT → producer without bookkeeping.
    #[command(name = "relay_drain")]
    RelayDrain(relay_drain::Args),
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Table,
    /// For machines: one object.
    Json,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Cli { bench: Bench::RelayDrain(args) } = Cli::parse();
    match relay_drain::run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}
