//! Checks of a SQLite database. Pure.

use super::common::{DATABASE, accepted};
use super::facts::SqliteFacts;
use super::report::{CheckState, Finding};
use super::schema;
use super::text::bytes;

/// With less, a busy outbox fills the disk within hours.
const FREE_WARN: u64 = 1 << 30;
const FREE_FAIL: u64 = 100 << 20;

/// Returns the findings of all checks of a file that could be opened.
#[must_use]
pub(crate) fn check(facts: &SqliteFacts) -> Vec<Finding> {
    let mut findings = vec![Finding::pass("server", DATABASE, format!("SQLite {}", facts.version))];
    findings.extend(facts.lines.iter().map(|line| schema::check(line, DATABASE)));
    findings.push(accepted(facts.refused.as_deref()));
    findings.push(durability());
    findings.push(journal(facts));
    findings.push(disk(facts));
    findings
}

/// The file does not store the setting: every connection has its own, and no other one can see it.
fn durability() -> Finding {
    let measured = "transactions that the toolkit begins wait for the disk (PRAGMA synchronous = FULL); those that \
        the service begins wait only if it sets that itself";
    Finding::pass("durability", DATABASE, measured)
}

fn journal(facts: &SqliteFacts) -> Finding {
    let problem = (facts.journal_mode != "wal").then(|| {
        let remedy = "readers and the writer block each other: run PRAGMA journal_mode = WAL";
        (CheckState::Warn, remedy.to_owned())
    });
    Finding::unless("journal", DATABASE, format!("journal_mode = {}", facts.journal_mode), problem)
}

fn disk(facts: &SqliteFacts) -> Finding {
    let size = bytes(facts.database_bytes);
    let Some(free) = facts.free_bytes else {
        let remedy = "monitor its disk by other means";
        return Finding::unknown("disk", DATABASE, format!("the file takes {size}"), remedy);
    };
    let state = match free {
        free if free < FREE_FAIL => Some(CheckState::Fail),
        free if free < FREE_WARN => Some(CheckState::Warn),
        _ => None,
    };
    let remedy = || format!("a full disk stops producers: free space on the disk of {}", facts.file);
    let measured = format!("the file takes {size}, {} free", bytes(free));
    Finding::unless("disk", DATABASE, measured, state.map(|state| (state, remedy())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_and_a_rollback_journal_are_told() {
        let facts = SqliteFacts {
            file: String::from("/data/orders.db"),
            version: String::from("3.50.0"),
            journal_mode: String::from("delete"),
            refused: None,
            lines: Vec::new(),
            free_bytes: Some(1),
            database_bytes: 1,
        };
        let states: Vec<_> = check(&facts).iter().map(|finding| (finding.check, finding.state)).collect();
        assert!(states.contains(&("journal", CheckState::Warn)), "{states:?}");
        assert!(states.contains(&("durability", CheckState::Pass)), "{states:?}");
        assert!(states.contains(&("disk", CheckState::Fail)), "{states:?}");
    }
}
