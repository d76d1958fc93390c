//! `cargo xtask night`: the checks that are slow or depend on the clock.

use super::{
    list::{self, Check, Place},
    runner::{Ended, Runner},
    summary,
};
use crate::{
    git,
    report::{self, Output},
    require::Require,
    workspace,
};
use clap::Args;
use serde_json::Value;
use std::{
    fs,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

/// Run everything that the gate leaves out, one check after the other, to the last one.
///
/// A failed check stops no other. The result is a table and a file. A night takes hours; an
/// interrupted night can be continued with `--resume`.
#[derive(Debug, Args)]
pub(crate) struct Night {
    /// Run only these checks, separated by commas; `cargo xtask check --list` has their names.
    #[arg(long, value_delimiter = ',', value_name = "CHECK")]
    only: Vec<String>,
    /// Leave out checks that have already passed on the current commit.
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
    let begun = Instant::now();
    let runner = Runner::new(Place::Night, &options.require, TIME_LIMIT)?;
    let mut checks = chosen(options)?;
    if options.resume {
        let done = passed_before(runner.folder())?;
        checks.retain(|check| !done.iter().any(|name| name == check.name));
        eprintln!(
            "passed before on this commit: {}",
            if done.is_empty() { "none".to_owned() } else { done.join(", ") }
        );
    }
    let mut ended: Vec<Ended> = Vec::new();
    for check in checks {
        eprintln!("{:18} …", check.name);
        ended.extend(runner.run(&[vec![check]], |one| eprintln!("{}", summary::line(one))));
        // Written after each check, so that an interrupted night keeps its results.
        let results = summary::json(Place::Night, &ended, begun.elapsed().as_secs_f64())?;
        summary::write(&merged(results, options.resume, runner.folder())?, runner.folder())?;
    }
    let results = summary::json(Place::Night, &ended, begun.elapsed().as_secs_f64())?;
    match options.output {
        Output::Json => report::json(&results),
        Output::Table => summary::print(&ended),
    }
    Ok(if summary::total(&ended).is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn chosen(options: &Night) -> Result<Vec<&'static Check>, String> {
    if options.only.is_empty() {
        return Ok(list::of(Place::Night));
    }
    options.only.iter().map(|name| list::find(name)).collect()
}

/// Returns the names of the checks that passed in an earlier run on the current commit.
fn passed_before(folder: &Path) -> Result<Vec<String>, String> {
    let commit = git::answer(&workspace::root()?, ["rev-parse", "HEAD"])?;
    let Some(results) = earlier(folder)? else { return Ok(Vec::new()) };
    if results["commit"] != commit.trim() {
        return Ok(Vec::new());
    }
    let checks = results["checks"].as_array().cloned().unwrap_or_default();
    let passed = checks.iter().filter(|check| check["ok"] == true);
    Ok(passed.filter_map(|check| check["check"].as_str()).map(str::to_owned).collect())
}

/// Merges the results of a resumed run with the earlier ones.
fn merged(mut results: Value, resumed: bool, folder: &Path) -> Result<Value, String> {
    let Some(before) = earlier(folder)?.filter(|before| resumed && before["commit"] == results["commit"])
    else {
        return Ok(results);
    };
    let is_new = |old: &Value| {
        let checks = results["checks"].as_array();
        !checks.is_some_and(|checks| checks.iter().any(|check| check["check"] == old["check"]))
    };
    let kept: Vec<Value> =
        before["checks"].as_array().into_iter().flatten().filter(|old| is_new(old)).cloned().collect();
    if let Some(checks) = results["checks"].as_array_mut() {
        checks.splice(0..0, kept);
    }
    Ok(results)
}

fn earlier(folder: &Path) -> Result<Option<Value>, String> {
    let file = folder.join("results.json");
    if !file.exists() {
        return Ok(None);
    }
    let text =
        fs::read_to_string(&file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| format!("{} is not a file of results: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_resumed_night_keeps_what_it_knows() {
        let folder = std::env::temp_dir().join(format!("xtask-night-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let before =
            json!({"commit": "a", "checks": [{"check": "deny", "ok": true}, {"check": "fuzz", "ok": false}]});
        fs::write(folder.join("results.json"), before.to_string()).unwrap();
        let now = json!({"commit": "a", "checks": [{"check": "fuzz", "ok": true}]});
        let both = merged(now.clone(), true, &folder);
        let fresh = merged(now.clone(), false, &folder);
        let other = merged(json!({"commit": "b", "checks": []}), true, &folder);
        fs::remove_dir_all(&folder).unwrap();
        let expected = json!([{"check": "deny", "ok": true}, {"check": "fuzz", "ok": true}]);
        assert_eq!(both.unwrap()["checks"], expected);
        assert_eq!(fresh.unwrap(), now);
        assert_eq!(other.unwrap()["checks"], json!([]), "another commit proves nothing");
    }
}
