//! The go-live checklist: the conditions for production, and which of them the checks have
//! verified. Pure.

use serde::Serialize;

use super::report::{CheckState, Finding, PipelineReport};
use super::schema;

/// One item of the checklist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChecklistItem {
    /// The condition.
    pub item: &'static str,
    /// `pass` when it was verified, `unknown` when a person must verify it.
    pub state: CheckState,
    /// How it was verified, or who is responsible and how to verify it.
    pub how: &'static str,
}

/// The way to verify an item.
enum By {
    /// By the worst of these checks; unknown if none has run.
    Checks(&'static [&'static str], &'static str),
    /// By the tables that remember keys; unknown if none of them is in a checked database.
    KeyTables(&'static str),
    /// By a person.
    Person(&'static str),
}

const ITEMS: [(&str, By); 14] = [
    ("keys validated (format, length)", By::KeyTables("column types and constraints refuse invalid keys")),
    (
        "operation type part of the key",
        By::Person(
            "inbox: the consumer name; idempotency keys: the operation. Give each operation its own name",
        ),
    ),
    (
        "retention 2–3× the longest retry window",
        By::Checks(&["inbox-retention"], "inbox retention compared with how long the broker can redeliver"),
    ),
    ("unique constraint on the key", By::KeyTables("primary keys of the migrated tables")),
    (
        "expiry job",
        By::Checks(
            &["history"],
            "`relay run` deletes old messages; each consumer's maintenance deletes expired inbox days",
        ),
    ),
    (
        "check and effect in one transaction",
        By::Person(
            "the handler must write in the transaction that it gets; `relay verify` finds effects outside it",
        ),
    ),
    (
        "row locks against races",
        By::KeyTables("the guard's insert waits for a concurrent insert of the same id"),
    ),
    ("state tracked", By::Checks(&["schema", "grants"], "parked, dead and applied messages have rows")),
    ("ids used for dedup end to end", By::Person("`relay verify` checks this on real traffic")),
    ("keys logged", By::Person("log your business keys next to the message id, which the toolkit logs")),
    ("duplicate rate tracked", By::Person("scrape the consumers' metrics: applied and duplicates")),
    ("alerts", By::Person("alert on backlog age, dead letters, and no leader")),
    (
        "replay, concurrency, load and failure tests",
        By::Person("docs/testing.md: the testkit covers duplicates, concurrency and crashes"),
    ),
    (
        "key format, retention, retry behaviour and error codes documented",
        By::Person("in the documentation of your interface"),
    ),
];

/// The lines whose tables remember keys.
const KEY_LINES: [&str; 2] = ["inbox", "idempotency"];

/// Returns whether the finding is about tables that remember keys.
fn is_of_keys(finding: &Finding) -> bool {
    KEY_LINES.iter().any(|line| schema::is_of(finding, line))
}

/// Returns the worst state of the findings that count; unknown if there is none.
fn worst(reports: &[PipelineReport], counts: impl Fn(&Finding) -> bool) -> CheckState {
    let made = reports.iter().flat_map(|report| &report.checks);
    let states = made.filter(|finding| counts(finding)).map(|finding| finding.state);
    states.max().unwrap_or(CheckState::Unknown)
}

/// Returns the checklist with the results of the reports.
#[must_use]
pub fn checklist(reports: &[PipelineReport]) -> Vec<ChecklistItem> {
    let decide = |(item, by): &(&'static str, By)| {
        let (state, how) = match by {
            By::Person(how) => (CheckState::Unknown, how),
            By::Checks(checks, how) => (worst(reports, |finding| checks.contains(&finding.check)), how),
            By::KeyTables(how) => (worst(reports, is_of_keys), how),
        };
        ChecklistItem { item, state, how }
    };
    ITEMS.iter().map(decide).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn an_item_is_verified_by_its_checks_or_left_to_a_person() {
        let checks = vec![
            Finding::pass("schema", "database", "outbox version 1 of 1"),
            Finding::fail("inbox-retention", "inbox", "", ""),
            Finding::pass("inbox-retention", "inbox", ""),
        ];
        let list = checklist(&[PipelineReport { pipeline: String::from("orders"), checks }]);
        let state = |part: &str| list.iter().find(|item| item.item.contains(part)).map(|item| item.state);
        assert_eq!(state("unique constraint"), Some(CheckState::Unknown), "the outbox has no such key");
        assert_eq!(state("state tracked"), Some(CheckState::Pass));
        assert_eq!(state("retention 2"), Some(CheckState::Fail));
        assert_eq!(state("expiry job"), Some(CheckState::Unknown));
        assert_eq!((state("alerts"), list.len()), (Some(CheckState::Unknown), 14));
        let checks = vec![Finding::pass("schema", "inbox billing", "inbox version 1 of 1")];
        let list = checklist(&[PipelineReport { pipeline: String::from("orders"), checks }]);
        let unique = list.iter().find(|item| item.item.contains("unique constraint"));
        assert_eq!(unique.map(|item| item.state), Some(CheckState::Pass));
    }
}
