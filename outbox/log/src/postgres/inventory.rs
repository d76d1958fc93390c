//! Every statement of the outbox on PostgreSQL, for the test that counts what each of them reads.

pub use outbox::postgres::inventory::Listed;
use outbox::postgres::inventory::statements as of_producers;

use crate::postgres::rebase::Rebase;
use crate::postgres::store::ONE_PLAN_HERE;
use crate::postgres::{admin, entries, facts, operations, pause, reconcile, retention, statements};

/// The planner settings of the relay's sessions, for one transaction.
pub const ONE_PLAN: &str = ONE_PLAN_HERE;

/// Statements that are constants of their modules.
const CONSTANTS: [(&str, &str); 27] = [
    ("admin.RELAYS", admin::RELAYS),
    ("admin.PRESENT", admin::PRESENT),
    ("admin.COUNTS", admin::COUNTS),
    ("admin.PARKED_AGE", admin::PARKED_AGE),
    ("admin.BACKLOG", admin::BACKLOG),
    ("admin.BLOCKER", admin::BLOCKER),
    ("admin.LOCK_ENTRIES", admin::LOCK_ENTRIES),
    ("admin.LOOK_AT_ENTRIES", admin::LOOK_AT_ENTRIES),
    ("admin.LOCK_WAITING", admin::LOCK_WAITING),
    ("admin.SET_DUE", admin::SET_DUE),
    ("admin.OVERDUE", admin::OVERDUE),
    ("admin.REQUEUE", admin::REQUEUE),
    ("admin.DISCARD", admin::DISCARD),
    ("admin.EDIT", admin::EDIT),
    ("admin.AUDIT", admin::AUDIT),
    ("admin.RECORDS", admin::RECORDS),
    ("entries.FIRSTS", entries::FIRSTS),
    ("pause.PAUSES", pause::PAUSES),
    ("pause.PAUSE", pause::PAUSE),
    ("pause.RESUME", pause::RESUME),
    ("operations.NOTE", operations::NOTE),
    ("operations.OPERATIONS", operations::OPERATIONS),
    ("retention.LIST", retention::LIST),
    ("retention.EXPIRE", retention::EXPIRE),
    ("retention.HOLDER", retention::HOLDER),
    ("retention.FORGET", retention::FORGET),
    ("retention.FORGET_DECISIONS", retention::FORGET_DECISIONS),
];

/// Returns every statement, those of producers included, except those that `store` runs once when
/// it connects: they read the server's catalogs.
#[must_use]
pub fn statements() -> Vec<Listed> {
    let constants = CONSTANTS.iter().map(|(name, text)| Listed::constant(name, text));
    [
        Listed::all_of("statements", statements::Statements::new(None).each()),
        Listed::all_of("facts", facts::Statements::new(None).each()),
        Listed::all_of("rebase", Rebase::new(None).each()),
        Listed::all_of("admin", admin::Statements::new(None).each()),
        Listed::all_of("entries", entries::Statements::new(None).each()),
        Listed::all_of("reconcile", reconcile::Statements::new(None).each()),
        constants.collect(),
        of_producers(),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use outbox::postgres::inventory::unlisted;

    use super::*;

    /// A constant that is missing in the list would never be measured.
    #[test]
    fn every_statement_that_is_a_constant_is_listed() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/postgres"));
        // `store` has queries of the catalogs, and `statements` parts of statements that are listed
        // whole.
        let unlisted = unlisted(folder, &["inventory", "store", "statements"], &CONSTANTS).unwrap();
        assert_eq!(unlisted, Vec::<String>::new());
    }
}
