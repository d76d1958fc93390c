//! `cargo xtask check`: checks by name, with all their output.

use super::{
    list::{self, Place, Told},
    outcome::{self, Outcome},
};
use crate::{report, require::Require, workspace};
use clap::Args;
use std::{path::PathBuf, process::ExitCode};

/// Run checks by name with all their output, or list them.
#[derive(Debug, Args)]
pub(crate) struct Single {
    /// For example `clippy` or `end-to-end`; `--list` has all names.
    #[arg(required_unless_present = "list")]
    checks: Vec<String>,
    /// List all checks: where each one runs, and why.
    #[arg(long)]
    list: bool,
    /// Which cases of a suite run: those of the gate or those of the night [default: where the
    /// check belongs].
    #[arg(long, value_name = "gate|night")]
    place: Option<String>,
    /// Fail when one of these services is missing: all, none, or names separated by commas
    /// [default: all if CI=true, else none].
    #[arg(long)]
    require: Option<Require>,
}

pub(crate) fn run(options: &Single) -> Result<ExitCode, String> {
    if options.list {
        let row = |check: &list::Check| [check.name, check.place.as_str(), check.why].map(str::to_owned);
        println!(
            "{}",
            report::wrapped_table(["check", "runs in", "what, and why there"], list::ALL.iter().map(row))
        );
        return Ok(ExitCode::SUCCESS);
    }
    let place = match options.place.as_deref() {
        None => None,
        Some("gate") => Some(Place::Gate),
        Some("night") => Some(Place::Night),
        Some(other) => return Err(format!("--place {other}: use gate or night")),
    };
    let default = if workspace::is_ci() { Require::All } else { Require::None };
    let require = options.require.clone().unwrap_or(default);
    let checks = options.checks.iter().map(|name| list::find(name)).collect::<Result<Vec<_>, _>>()?;
    let mut sum = Outcome::default();
    for check in checks {
        let told = Told { require: require.clone(), place: place.unwrap_or(check.place) };
        let outcome = (check.run)(&told).unwrap_or_else(Outcome::failed);
        for failure in &outcome.failures {
            eprintln!("error: {}: {failure}", check.name);
        }
        for ignored in &outcome.ignored {
            eprintln!("{}: not checked: {ignored}", check.name);
        }
        sum.add(outcome);
    }
    if let Some(file) = std::env::var_os(outcome::FILE_VARIABLE) {
        sum.write(&PathBuf::from(file))?;
    }
    println!("\n{sum}");
    Ok(if sum.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
