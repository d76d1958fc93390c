//! The end of a run: a table, failures and their reasons, and the counts.

use super::{
    outcome::Outcome,
    results::{Line, Results},
    runner::Ended,
};
use crate::report;

/// The maximum number of lines of one report that are shown; its log has all of them.
const REPORT_LINES: usize = 120;

/// Returns one line about a check that has just ended.
pub(super) fn line(ended: &Ended) -> String {
    let result = if ended.outcome.is_success() { "passed" } else { "FAILED" };
    format!("{:18} {result}: {}, {:.0} s", ended.check.name, ended.outcome, ended.seconds)
}

/// Prints the table, the reports of failures and the line with the counts, so that the end of a
/// long output shows why a run failed.
pub(super) fn print(results: &Results) {
    println!("\n{}", table(&results.checks));
    for line in &results.checks {
        for ignored in &line.outcome.ignored {
            println!("{}: not checked: {ignored}", line.check);
        }
    }
    for line in results.checks.iter().filter(|line| !line.ok) {
        println!("\n=== {} failed; its log is {}", line.check, line.log.display());
        for failure in &line.outcome.failures {
            println!("{}", shortened(failure));
        }
    }
    println!("\n{}", results.total());
}

/// Returns a report, or only its last lines if it is long.
fn shortened(report: &str) -> String {
    let lines: Vec<&str> = report.trim_end().lines().collect();
    match lines.len().checked_sub(REPORT_LINES) {
        None | Some(0) => lines.join("\n"),
        Some(more) => format!("({more} lines above)\n{}", lines[more..].join("\n")),
    }
}

fn table(lines: &[Line]) -> String {
    let rows = lines.iter().map(|line| {
        let Outcome { passed, failed, skipped, .. } = line.outcome;
        let result = if line.ok { "passed" } else { "FAILED" };
        let [passed, failed, skipped] = [passed, failed, skipped].map(|count| count.to_string());
        [line.check.clone(), result.to_owned(), passed, failed, skipped, format!("{:.0}", line.seconds)]
    });
    report::table(["check", "result", "passed", "failed", "skipped", "seconds"], rows)
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
