//! The checks of the schema's lines: versions, and row-level security. Pure.

use super::facts::LineFacts;
#[cfg(feature = "postgres")]
use super::report::CheckState;
use super::report::Finding;

const CHECK: &str = "schema";

/// Checks one line.
pub(super) fn check(line: &LineFacts, subject: &str) -> Finding {
    let measured = format!("{}{} of {}", beginning(line.line), line.version, line.version_needed);
    match &line.problem {
        None if !line.missing.is_empty() => {
            // A day that is created again has no record of what took effect on it.
            let how = if line.line == "inbox" {
                "enable triggers and create indexes again as in `relay migrate sql`, and attach days again \
                 (docs/operations/histories.md: a day that is gone)"
            } else {
                "attach, enable or create again as in `relay migrate sql`"
            };
            let remedy = format!("{how}: {}", line.missing.join(", "));
            Finding::fail(CHECK, subject, measured, remedy)
        }
        None => Finding::pass(CHECK, subject, measured),
        // The tables of inboxes and keys are in the databases of their services.
        Some(_) if line.version == 0 && line.line != "outbox" => {
            Finding::pass(CHECK, subject, format!("{} is not in this database", line.line))
        }
        Some(problem) => Finding::fail(CHECK, subject, measured, problem.clone()),
    }
}

/// Checks for row-level security, from which this role is exempt: otherwise the check of the
/// versions fails.
#[cfg(feature = "postgres")]
pub(super) fn row_security(lines: &[LineFacts], subject: &str) -> Finding {
    let tables: Vec<&str> = lines.iter().flat_map(|line| &line.row_security).map(String::as_str).collect();
    if tables.is_empty() {
        return Finding::pass("row-security", subject, "no table of the toolkit has row-level security");
    }
    let remedy = "inbox, keys, sagas and relays of other roles refuse to start, and a policy costs each message \
                  time: ALTER TABLE … DISABLE ROW LEVEL SECURITY, and one schema for each tenant instead \
                  (docs/security.md)";
    Finding::unless("row-security", subject, tables.join(", "), Some((CheckState::Warn, remedy.to_owned())))
}

/// Returns whether the finding is about a line whose tables exist.
pub(super) fn is_of(finding: &Finding, line: &str) -> bool {
    finding.check == CHECK && finding.measured.starts_with(&beginning(line))
}

fn beginning(line: &str) -> String {
    format!("{line} version ")
}
