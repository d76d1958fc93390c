//! `cargo run --release -p simulation -- --schedules 100000` runs many schedules. A failing one is
//! shrunk and shown.

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use comfy_table::Table;
use indicatif::{ProgressBar, ProgressStyle};
use simulation::{Breakage, Found, Schedule, run, search, shrink};

/// Runs the relay engine and the consumer runner through simulated faults, and checks every
/// promise.
#[derive(Debug, Parser)]
#[command(name = "simulation", version)]
struct Arguments {
    /// Number of schedules to run.
    #[arg(long, default_value_t = 10_000)]
    schedules: u64,
    /// The first seed; each schedule takes the next one.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Break a part of the environment on purpose: it must be found.
    #[arg(long = "break", value_name = "PART")]
    breakage: Option<Breakage>,
    /// Show the course of events of the first seed, whatever its outcome.
    #[arg(long)]
    trace: bool,
    /// Show a failing schedule without shrinking it.
    #[arg(long)]
    no_shrink: bool,
    /// The format of the result. With JSON, a failing schedule goes to standard error.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A table for people.
    #[default]
    Table,
    /// JSON for machines.
    Json,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.trace {
        let schedule = Schedule::of(arguments.seed);
        return show(&schedule, arguments.breakage);
    }
    let bar = ProgressBar::new(arguments.schedules);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} schedules, {per_sec}, {eta} left")
    {
        bar.set_style(style);
    }
    let seeds = arguments.seed..arguments.seed.saturating_add(arguments.schedules);
    let found = search(seeds, arguments.breakage, || bar.inc(1));
    bar.finish_and_clear();
    match arguments.output {
        Output::Table => println!("{}", table(&found)),
        Output::Json => println!("{}", json(&found)),
    }
    let Some((seed, outcome)) = found.failed else { return ExitCode::SUCCESS };
    eprintln!("seed {seed} fails:");
    outcome.failures.iter().for_each(|(_, text)| eprintln!("  {text}"));
    let mut schedule = Schedule::of(seed);
    if let Some(failure) = outcome.failure().filter(|_| !arguments.no_shrink) {
        eprintln!("making it small …");
        schedule = shrink(&schedule, arguments.breakage, failure);
    }
    if arguments.output == Output::Json {
        eprintln!("{schedule}");
        return ExitCode::FAILURE;
    }
    show(&schedule, arguments.breakage)
}

fn json(found: &Found) -> serde_json::Value {
    let failed = found.failed.as_ref().map(|(seed, outcome)| {
        let failures: Vec<&str> = outcome.failures.iter().map(|(_, text)| text.as_str()).collect();
        serde_json::json!({ "seed": seed, "failures": failures })
    });
    serde_json::json!({
        "schedules": found.schedules,
        "events": found.events,
        "simulated_seconds": found.simulated.as_secs_f64(),
        "seconds": found.took.as_secs_f64(),
        "failed": failed,
    })
}

fn table(found: &Found) -> Table {
    let seconds = found.took.as_secs_f64().max(1e-9);
    let mut table = Table::new();
    table.set_header(["schedules", "held", "events", "simulated", "took", "schedules/s"]);
    let held = found.schedules - u64::from(found.failed.is_some());
    table.add_row([
        found.schedules.to_string(),
        held.to_string(),
        found.events.to_string(),
        format!("{:.1} h", found.simulated.as_secs_f64() / 3_600.0),
        format!("{seconds:.1} s"),
        format!("{:.0}", found.schedules as f64 / seconds),
    ]);
    table
}

/// Shows a schedule, its course of events, and its outcome.
fn show(schedule: &Schedule, breakage: Option<Breakage>) -> ExitCode {
    let outcome = run(schedule, breakage, true);
    println!("{schedule}");
    outcome.lines.iter().for_each(|line| println!("{line}"));
    println!("\n{} events, hash {:016x}, {:?} simulated", outcome.events, outcome.hash, outcome.lasted);
    if outcome.failures.is_empty() {
        println!("every promise held");
        return ExitCode::SUCCESS;
    }
    outcome.failures.iter().for_each(|(_, text)| println!("✗ {text}"));
    ExitCode::FAILURE
}
