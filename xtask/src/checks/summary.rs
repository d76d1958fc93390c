//! The end of a run: failures and their reasons, a table, a file of results, and the counts.

use super::{list::Place, outcome::Outcome, runner::Ended};
use crate::{git, report, workspace};
use serde_json::{Value, json};
use std::{fs, path::Path};

/// The maximum number of lines of one report that are shown; its log has all of them.
const REPORT_LINES: usize = 120;

/// Returns the sum of all checks.
pub(super) fn total(ended: &[Ended]) -> Outcome {
    ended.iter().fold(Outcome::default(), |mut sum, one| {
        sum.add(one.outcome.clone());
        sum
    })
}

/// Returns one line about a check that has just ended.
pub(super) fn line(ended: &Ended) -> String {
    let result = if ended.outcome.is_success() { "passed" } else { "FAILED" };
    format!("{:18} {result}: {}, {:.0} s", ended.check.name, ended.outcome, ended.seconds)
}

/// Prints the table, the reports of failures and the line with the counts, so that the end of a
/// long output shows why a run failed.
pub(super) fn print(ended: &[Ended]) {
    println!("\n{}", table(ended));
    for one in ended {
        for ignored in &one.outcome.ignored {
            println!("{}: not checked: {ignored}", one.check.name);
        }
    }
    for one in ended.iter().filter(|one| !one.outcome.is_success()) {
        println!("\n=== {} failed; its log is {}", one.check.name, one.log.display());
        for failure in &one.outcome.failures {
            println!("{}", shortened(failure));
        }
    }
    println!("\n{}", total(ended));
}

/// Returns a report, or only its last lines if it is long.
fn shortened(report: &str) -> String {
    let lines: Vec<&str> = report.trim_end().lines().collect();
    match lines.len().checked_sub(REPORT_LINES) {
        None | Some(0) => lines.join("\n"),
        Some(more) => format!("({more} lines above)\n{}", lines[more..].join("\n")),
    }
}

fn table(ended: &[Ended]) -> String {
    let rows = ended.iter().map(|one| {
        let Outcome { passed, failed, skipped, .. } = one.outcome;
        let result = if one.outcome.is_success() { "passed" } else { "FAILED" };
        let counts = [passed, failed, skipped].map(|count| count.to_string());
        let [passed, failed, skipped] = counts;
        let name = one.check.name.to_owned();
        [name, result.to_owned(), passed, failed, skipped, format!("{:.0}", one.seconds)]
    });
    report::table(["check", "result", "passed", "failed", "skipped", "seconds"], rows)
}

/// Returns the results as JSON.
pub(super) fn json(place: Place, ended: &[Ended], seconds: f64) -> Result<Value, String> {
    let commit = git::answer(&workspace::root()?, ["rev-parse", "HEAD"])?;
    let checks = ended.iter().map(|one| {
        json!({
            "check": one.check.name,
            "ok": one.outcome.is_success(),
            "passed": one.outcome.passed,
            "failed": one.outcome.failed,
            "skipped": one.outcome.skipped,
            "not_checked": one.outcome.ignored,
            "seconds": one.seconds,
            "log": one.log,
        })
    });
    Ok(json!({
        "place": place.as_str(),
        "commit": commit.trim(),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "seconds": seconds,
        "checks": checks.collect::<Vec<_>>(),
    }))
}

/// Writes the results into a file in the folder of logs.
pub(super) fn write(results: &Value, folder: &Path) -> Result<(), String> {
    let file = folder.join("results.json");
    fs::write(&file, format!("{results:#}\n"))
        .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    eprintln!("results and logs: {}", folder.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_report_keeps_its_end() {
        let report: String = (0..200).map(|line| format!("{line}\n")).collect();
        let short = shortened(&report);
        assert!(short.starts_with("(80 lines above)\n80\n") && short.ends_with("\n199"), "{short}");
        assert_eq!(shortened("one\n"), "one");
    }
}
