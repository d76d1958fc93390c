//! The command line of the program.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::Failure;
use crate::pair::{BrokerKind, DatabaseKind, Pair};
use crate::progress::Progress;
use crate::report::PairReport;
use crate::run::{self, Options};
use crate::setup::{Programs, Servers};
use crate::verdict::StormVerdict;
use crate::{consume, faults, load, process, sagas};

/// Runs producers, relays and consumers against real services, injects random faults, and lets the
/// checker decide what held.
#[derive(Debug, Parser)]
#[command(name = "storm", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a storm over each pair. Exit code 0: everything held; 1: something is broken; 2: a storm
    /// could not run; 3: no verdict, because something was still in flight.
    Run(Run),
    /// A producer, in its own process.
    #[command(hide = true)]
    Producer { task: PathBuf },
    /// A consumer, in its own process.
    #[command(hide = true)]
    Consumer { task: PathBuf },
    /// A process that starts sagas.
    #[command(hide = true)]
    Orders { task: PathBuf },
    /// A process that runs sagas.
    #[command(hide = true)]
    Worker { task: PathBuf },
}

#[derive(Debug, Args)]
struct Run {
    /// For how long faults are injected into each pair.
    #[arg(long, value_name = "MINUTES", default_value_t = 1.0)]
    minutes: f64,
    /// Seed of the plan of faults; random by default.
    #[arg(long)]
    seed: Option<u64>,
    /// Only these databases; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    database: Vec<DatabaseKind>,
    /// Only these brokers; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    broker: Vec<BrokerKind>,
    /// Only these faults.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    fault: Vec<String>,
    /// Print the plan and run nothing.
    #[arg(long)]
    plan: bool,
    /// Switch off the inbox's guard: duplicates take effect again, and the storm must find out.
    #[arg(long)]
    without_inbox_guard: bool,
    /// Relays publish in transactions, and a reader of committed records must see no copy. Kafka
    /// only. Leaves out the faults that bring a database back to an earlier state, after which such
    /// a relay waits for its operator.
    #[arg(long)]
    transactional: bool,
    /// PostgreSQL vacuums its tables but never analyses them, so that all plans are made without
    /// statistics.
    #[arg(long)]
    never_analysed: bool,
    /// Operations per second, over all producers. A long storm has fewer, so that it can be checked
    /// in memory.
    #[arg(long, value_name = "RATE", default_value_t = 60.0)]
    rate: f64,
    /// Which faults this machine must offer: all, or none.
    #[arg(long, value_enum, default_value_t)]
    require: Require,
    /// Keep databases, topics, queues and the folder even if the storm holds.
    #[arg(long)]
    keep: bool,
    /// The folder below which each storm has its own.
    #[arg(long, default_value = "target/storm")]
    folder: PathBuf,
    /// The format of the result.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Require {
    /// A missing fault is reported as ignored.
    #[default]
    None,
    /// A missing fault is an error.
    All,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Tables for people.
    #[default]
    Table,
    /// JSON for machines.
    Json,
}

/// Maximum number of operations in one storm. The checker holds all of them in memory.
const OPERATIONS_MAX: f64 = 400_000.0;
/// The exit code if a storm could not run.
const NOT_RUN: u8 = 2;
/// Number of workers of all producers together.
const WORKERS: f64 = 12.0;

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// The command has no result.
    pub async fn execute(self) -> Result<ExitCode, Failure> {
        match self.command {
            Command::Run(run) => run.execute().await,
            Command::Producer { task } => load::run(process::task(&task)?).await.map(|()| ExitCode::SUCCESS),
            Command::Consumer { task } => {
                consume::run(process::task(&task)?).await.map(|()| ExitCode::SUCCESS)
            }
            Command::Orders { task } => sagas::order(process::task(&task)?).await.map(|()| ExitCode::SUCCESS),
            Command::Worker { task } => {
                Box::pin(sagas::work(process::task(&task)?)).await.map(|()| ExitCode::SUCCESS)
            }
        }
    }
}

impl Run {
    async fn execute(self) -> Result<ExitCode, Failure> {
        let options = self.options()?;
        let pairs = self.pairs();
        if self.plan {
            return self.print_plan(&pairs, &options);
        }
        self.name_missing()?;
        let servers = Servers::from_environment()?;
        let progress = Progress::default();
        eprintln!("seed {}", options.seed);
        let (mut reports, mut failures) = (Vec::new(), Vec::new());
        let stop = process::stop_on_signals()?;
        for pair in pairs {
            if stop.is_cancelled() {
                failures.push(format!("{pair}: interrupted"));
                continue;
            }
            match run::run(pair, &servers, &options, &progress, &stop).await {
                Ok(report) => {
                    if self.output == Output::Table {
                        println!("{}", report.table());
                    }
                    reports.push(report);
                }
                Err(error) => {
                    eprintln!("{error}");
                    failures.push(error.to_string());
                }
            }
        }
        progress.finish();
        if self.output == Output::Json {
            let pairs = reports.iter().map(PairReport::json).collect::<Result<Vec<_>, _>>()?;
            let whole = serde_json::json!({ "seed": options.seed, "pairs": pairs, "failures": failures });
            println!("{}", serde_json::to_string_pretty(&whole)?);
        }
        let verdicts: Vec<StormVerdict> = reports.iter().map(PairReport::verdict).collect();
        Ok(ExitCode::from(exit_code(&verdicts, failures.is_empty())))
    }

    /// Reports the faults that this machine does not offer.
    fn name_missing(&self) -> Result<(), Failure> {
        for (fault, why) in faults::missing() {
            if self.require == Require::All {
                return Err(format!("the fault {fault} is required: {why}").into());
            }
            eprintln!("ignored: the fault {fault}: {why}");
        }
        Ok(())
    }

    fn options(&self) -> Result<Options, Failure> {
        if !(self.minutes > 0.0 && self.minutes.is_finite() && self.rate > 0.0) {
            return Err("--minutes and --rate must be above 0".into());
        }
        if self.transactional && self.broker != [BrokerKind::Kafka] {
            return Err("--transactional needs --broker kafka: only Kafka has transactions".into());
        }
        let length = Duration::from_secs_f64(self.minutes * 60.0);
        let rate = self.rate.min(OPERATIONS_MAX / length.as_secs_f64());
        let storm = std::env::current_exe()?;
        let relay = storm.with_file_name("relay");
        Ok(Options {
            seed: self.seed.unwrap_or_else(|| rand::random::<u32>().into()),
            length,
            pause: Duration::from_secs_f64(WORKERS / rate),
            faults: self.fault.clone(),
            guarded: !self.without_inbox_guard,
            transactional: self.transactional,
            never_analysed: self.never_analysed,
            keep: self.keep,
            folder: std::path::absolute(&self.folder)?,
            programs: Programs { storm, relay },
            xtask: std::env::var_os("OUTBOX_XTASK").map(PathBuf::from).unwrap_or_default(),
        })
    }

    fn pairs(&self) -> Vec<Pair> {
        let databases = chosen(&self.database);
        let brokers = chosen(&self.broker);
        let pairs = databases
            .iter()
            .flat_map(|database| brokers.iter().map(|broker| Pair { database: *database, broker: *broker }));
        pairs.collect()
    }

    fn print_plan(&self, pairs: &[Pair], options: &Options) -> Result<ExitCode, Failure> {
        for pair in pairs {
            let injected = run::planned(*pair, options);
            if self.output == Output::Json {
                let whole = serde_json::json!({ "pair": pair, "seed": options.seed, "injected": injected });
                println!("{}", serde_json::to_string(&whole)?);
                continue;
            }
            println!("{pair}, seed {}", options.seed);
            for inject in injected {
                let (at, lasts) = (inject.at.as_secs_f64(), inject.lasts.as_secs_f64());
                println!("{at:>9.3} s  {:<24} for {lasts:>7.3} s  chance {:016x}", inject.fault, inject.seed);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn chosen<T: ValueEnum + Clone>(given: &[T]) -> Vec<T> {
    if given.is_empty() { T::value_variants().to_vec() } else { given.to_vec() }
}

/// Returns the code of the worst result. The order is: broken, not run, no verdict.
fn exit_code(verdicts: &[StormVerdict], is_whole: bool) -> u8 {
    let any = |verdict: StormVerdict| verdicts.contains(&verdict).then(|| verdict.exit_code());
    let not_run = (!is_whole).then_some(NOT_RUN);
    any(StormVerdict::Broken).or(not_run).or_else(|| any(StormVerdict::NoVerdict)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_tells_the_worst() {
        use StormVerdict::{Broken, Holds, NoVerdict};
        assert_eq!(exit_code(&[Holds, Holds], true), 0);
        assert_eq!(exit_code(&[Holds, NoVerdict, Broken], false), 1);
        assert_eq!(exit_code(&[NoVerdict], false), 2);
        assert_eq!(exit_code(&[Holds, NoVerdict], true), 3);
    }
}
