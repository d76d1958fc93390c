//! `cargo xtask night`: the checks that are slow or depend on the clock.

use super::{
    list::{self, Check, Place},
    results::{Code, Line, Results},
    runner::Runner,
    summary,
};
use crate::{
    report::{self, Output},
    require::Require,
};
use clap::Args;
use serde_json::json;
use std::{process::ExitCode, time::Duration};

/// Run everything that the gate leaves out, one check after the other, to the last one.
///
/// A failed check stops no other. The result is a table and a file. A night takes hours; an
/// interrupted night can be continued with `--resume`.
#[derive(Debug, Args)]
pub(crate) struct Night {
    /// Run only these checks, separated by commas; `cargo xtask check --list` has their names. The
    /// results of the others on the current commit are kept.
    #[arg(long, value_delimiter = ',', value_name = "CHECK")]
    only: Vec<String>,
    /// Run all but these checks, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "CHECK", conflicts_with = "only")]
    except: Vec<String>,
    /// Leave out checks that have already passed whole on the files of the current commit.
    #[arg(long)]
    resume: bool,
    /// Fail when one of these services is missing: all, none, or names separated by commas.
    #[arg(long, default_value = "all")]
    require: Require,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// The longest check is `mutants`, which builds once for each breakage.
const TIME_LIMIT: Duration = Duration::from_secs(4 * 60 * 60);

pub(crate) fn run(options: &Night) -> Result<ExitCode, String> {
    let runner = Runner::new(Place::Night, &options.require, TIME_LIMIT)?;
    let code = Code::look()?;
    let require = options.require.to_string();
    let mut results = known(options, &runner, &code)?;
    let mut checks = chosen(options)?;
    if options.resume {
        let standing = results.standing(&require, &code);
        checks.retain(|check| !standing.contains(&check.name));
        eprintln!("{}", said(&standing, &code));
    }
    for check in checks {
        eprintln!("{:18} …", check.name);
        for ended in runner.run(&[vec![check]], |one| eprintln!("{}", summary::line(one))) {
            results.put(Line::new(&ended, &require, &code));
        }
        // Written after each check, so that an interrupted night keeps its results.
        results.write(runner.folder())?;
    }
    match options.output {
        Output::Json => report::json(&json!(results)),
        Output::Table => summary::print(&results),
    }
    eprintln!("results and logs: {}", runner.folder().display());
    Ok(if results.total().is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the results for the current commit that belong in this night's table. A whole night
/// begins with nothing.
fn known(options: &Night, runner: &Runner, code: &Code) -> Result<Results, String> {
    let goes_on = options.resume || !options.only.is_empty();
    let earlier = if goes_on { Results::earlier(runner.folder(), code)? } else { None };
    if let Some(earlier) = earlier {
        return Ok(earlier);
    }
    Results::forget(runner.folder())?;
    Ok(Results::new(Place::Night, code))
}

fn chosen(options: &Night) -> Result<Vec<&'static Check>, String> {
    if !options.only.is_empty() {
        return options.only.iter().map(|name| list::find(name)).collect();
    }
    let left_out = options.except.iter().map(|name| list::find(name)).collect::<Result<Vec<_>, _>>()?;
    let is_wanted = |check: &&Check| left_out.iter().all(|other| other.name != check.name);
    Ok(list::of(Place::Night).into_iter().filter(is_wanted).collect())
}

/// Says which checks are left out.
fn said(standing: &[&str], code: &Code) -> String {
    match standing {
        [] if !code.is_clean => "files differ from the commit: every check runs again".to_owned(),
        [] => "no check has passed before on this commit".to_owned(),
        names => format!("passed before on this commit: {}", names.join(", ")),
    }
}
