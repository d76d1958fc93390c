//! `cargo xtask test`: the checks that must pass with every change.

use super::{
    change,
    list::{self, Check, Needs, Place},
    outcome::Outcome,
    programs::{Extent, Programs},
    results::{Code, Line, Results},
    runner::Runner,
    suites::{self, Cases},
    summary,
};
use crate::{
    backends::{Backends, Extent as Backing},
    report::{self, Output},
    require::Require,
    workspace,
};
use clap::Args;
use serde_json::json;
use std::{
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

/// Run the gate: lints, unit tests, simulation, and the suites on real services.
///
/// Services are started first. The last line is `N passed, N failed, N skipped`; a check without
/// tests counts as one. `cargo xtask night` runs the rest.
#[derive(Debug, Args)]
pub(crate) struct Test {
    /// Run only tests whose name contains this, including those of the night, and no lints.
    filter: Option<String>,
    /// Fail when one of these services is missing: all, none, or names separated by commas
    /// [default: all if CI=true, else none].
    #[arg(long)]
    require: Option<Require>,
    /// Run only these checks, separated by commas; `cargo xtask check --list` has their names.
    #[arg(long, value_delimiter = ',', value_name = "CHECK", conflicts_with = "filter")]
    only: Vec<String>,
    /// If only documents have changed since this revision, run only the checks of documents.
    #[arg(long, value_name = "REVISION", conflicts_with = "filter")]
    since: Option<String>,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    /// Arguments for the test programs, with a filter.
    #[arg(last = true, requires = "filter")]
    arguments: Vec<String>,
}

/// The checks that take seconds and wait for nothing.
const FIRST: [&str; 2] = ["fmt", "patches"];

/// The checks that run in parallel once the programs are built, lane by lane. Suites mostly wait
/// for services; the lints use the remaining processor time, and end before the longest suite.
const LANES: [&[&str]; 4] =
    [&["conformance"], &["end-to-end", "tls"], &["brokers", "canary", "clippy"], &["unit", "simulation"]];

/// The checks that a change of documents can affect.
const DOCUMENTS: [&str; 2] = ["fmt", "unit"];

/// The time limit of one check, so that one that hangs is told: at least five times the duration of
/// the longest, because a busy machine is slower.
const TIME_LIMIT: Duration = Duration::from_secs(60 * 60);

pub(crate) fn run(options: &Test) -> Result<ExitCode, String> {
    let default = if workspace::is_ci() { Require::All } else { Require::None };
    let require = options.require.clone().unwrap_or(default);
    let outcome = match &options.filter {
        Some(filter) => filtered(filter, &options.arguments, require)?,
        None => gate(options, &require)?,
    };
    Ok(if outcome.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the chosen checks of the gate.
fn gate(options: &Test, require: &Require) -> Result<Outcome, String> {
    let begun = Instant::now();
    let is_documents_only = match &options.since {
        Some(since) => change::is_documents_only(since)?,
        None => false,
    };
    let extent = if is_documents_only { Extent::Documents } else { Extent::Gate };
    let checks = chosen(options, is_documents_only)?;
    let mut runner = Runner::new(Place::Gate, require, TIME_LIMIT)?;
    Results::forget(runner.folder())?;
    let code = Code::look()?;
    let needs = checks.iter().map(|check| check.needs).max().unwrap_or(Needs::Nothing);
    let told = |ended: &super::runner::Ended| eprintln!("{}", summary::line(ended));

    // The quick checks come first; a failure there stops no other check.
    let (first, rest): (Vec<_>, Vec<_>) =
        checks.iter().copied().partition(|check| FIRST.contains(&check.name));
    let mut ended = runner.run(&[first], told);

    // The services start while the tests are built.
    let (backends, programs) = thread::scope(|scope| {
        let backends = scope.spawn(|| needs.backing().map(Backends::up).transpose());
        let programs = (needs > Needs::Nothing).then(|| Programs::build(extent)).transpose();
        let backends = backends.join().unwrap_or_else(|_| Err("xtask itself failed, see above".to_owned()));
        (backends, programs)
    });
    let backends = backends?;
    if let Some(backends) = &backends {
        println!("{}", backends.table());
        backends.require(require)?;
    }
    if let Some(programs) = programs? {
        runner.use_programs(&programs)?;
    }
    ended.extend(runner.run(&lanes(&rest), told));
    if let Some(backends) = backends {
        backends.release();
    }

    ended.sort_by_key(|one| list::ALL.iter().position(|check| check.name == one.check.name));
    let mut results = Results::new(Place::Gate, &code);
    let lines = ended.iter().map(|one| Line::new(one, &require.to_string(), &code));
    lines.for_each(|line| results.put(line));
    // Its checks run beside each other.
    results.seconds = begun.elapsed().as_secs_f64();
    results.write(runner.folder())?;
    match options.output {
        Output::Json => report::json(&json!(results)),
        Output::Table => summary::print(&results),
    }
    eprintln!("results and logs: {}", runner.folder().display());
    Ok(results.total())
}

fn chosen(options: &Test, is_documents_only: bool) -> Result<Vec<&'static Check>, String> {
    if !options.only.is_empty() {
        let named: Vec<_> = options.only.iter().map(|name| list::find(name)).collect::<Result<_, _>>()?;
        return match named.iter().find(|check| check.place != Place::Gate) {
            None => Ok(named),
            Some(check) => Err(format!("{0} belongs to the night: cargo xtask check {0}", check.name)),
        };
    }
    let all = list::of(Place::Gate);
    if is_documents_only {
        eprintln!("nothing but documents has changed: only the tests that read them run");
        return Ok(all.into_iter().filter(|check| DOCUMENTS.contains(&check.name)).collect());
    }
    Ok(all)
}

/// Arranges the checks in their lanes.
fn lanes(checks: &[&'static Check]) -> Vec<Vec<&'static Check>> {
    let of_lane = |names: &&[&str]| {
        let known = names.iter().filter_map(|name| checks.iter().find(|check| check.name == *name));
        known.copied().collect()
    };
    LANES.iter().map(of_lane).collect()
}

/// Runs the tests whose names contain a text, in this process and with all their output.
fn filtered(filter: &str, arguments: &[String], require: Require) -> Result<Outcome, String> {
    let backends = Backends::up(Backing::Everything)?;
    println!("{}", backends.table());
    backends.require(&require)?;
    let arguments = [&[filter.to_owned()], arguments].concat();
    let options = suites::Options { require, cases: Cases::All, arguments };
    let outcome = suites::run(&options, &backends, |_| true);
    backends.release();
    let outcome = outcome?;
    for failure in &outcome.failures {
        println!("\n{failure}");
    }
    println!("\n{outcome}");
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_of_the_gate_has_its_lane() {
        for check in list::of(Place::Gate) {
            let lanes = LANES.iter().filter(|lane| lane.contains(&check.name)).count();
            assert_eq!(lanes, usize::from(!FIRST.contains(&check.name)), "{}", check.name);
        }
        assert!(
            LANES.iter().flat_map(|lane| lane.iter()).chain(&DOCUMENTS).all(|name| list::find(name).is_ok())
        );
    }
}
