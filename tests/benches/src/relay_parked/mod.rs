//! The cost of parked entries: held rows that are read back under load, a key that waits while
//! another one is stuck, and the memory of a relay with a million of them.

mod delay;
mod drain;
mod gate;
mod memory;
mod rows;

use clap::ValueEnum;

use crate::Failure;
use crate::cli::Run;
use crate::report::Report;

/// The parts to measure, and their sizes.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Only these parts; several with commas (default all).
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Number of parked entries; several with commas (default 200,000, 400,000 and 1,000,000;
    /// `delay` takes the largest).
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1_000..))]
    rows: Vec<u32>,
    /// Number of keys of the rows whose memory is measured (default 100,000).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    keys: Option<u32>,
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A topic comes back while new messages of its keys are written, with slow commits.
    Drain,
    /// One key is dead and has many held rows.
    Delay,
    /// Resident memory.
    Memory,
}

impl Args {
    fn rows(&self, quick: bool) -> Vec<u32> {
        match (self.rows.as_slice(), quick) {
            ([], true) => vec![10_000],
            ([], false) => vec![200_000, 400_000, 1_000_000],
            (rows, _) => rows.to_vec(),
        }
    }
}

pub(crate) async fn run(run: &Run, args: &Args) -> Result<Report, Failure> {
    let mut report = Report::new("relay_parked");
    let rows = args.rows(run.options.quick);
    for part in Part::value_variants() {
        if !args.only.is_empty() && !args.only.contains(part) {
            continue;
        }
        match part {
            Part::Drain => drain::run(run, &mut report).await?,
            Part::Delay => delay::run(run, &rows, &mut report).await?,
            Part::Memory => memory::run(run, &rows, args.keys.unwrap_or(100_000), &mut report).await?,
        }
    }
    Ok(report)
}
