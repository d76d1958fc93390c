//! The check of the versions of the schema's lines. Pure.

use super::facts::LineFacts;
use super::report::Finding;

const CHECK: &str = "schema";

/// Checks one line.
pub(super) fn check(line: &LineFacts, subject: &str) -> Finding {
    let measured = format!("{}{} of {}", beginning(line.line), line.version, line.version_needed);
    match &line.problem {
        None => Finding::pass(CHECK, subject, measured),
        // The tables of inboxes and keys are in the databases of their services.
        Some(_) if line.version == 0 && line.line != "outbox" => {
            Finding::pass(CHECK, subject, format!("{} is not in this database", line.line))
        }
        Some(problem) => Finding::fail(CHECK, subject, measured, problem.clone()),
    }
}

/// Returns whether the finding is about a line whose tables are there.
pub(super) fn is_of(finding: &Finding, line: &str) -> bool {
    finding.check == CHECK && finding.measured.starts_with(&beginning(line))
}

fn beginning(line: &str) -> String {
    format!("{line} version ")
}
