//! Every statement of the outbox on PostgreSQL, for the test that counts what each of them reads.

pub use outbox::postgres::inventory::Listed;
use outbox::postgres::inventory::statements as of_producers;

use crate::postgres::store::ONE_PLAN_HERE;
use crate::postgres::{admin, entries, facts, fragments, rebase, reconcile, retention, statements, tables};

/// The planner settings of the relay's sessions, for one transaction.
pub const ONE_PLAN: &str = ONE_PLAN_HERE;

/// Statements that are constants of their modules.
const CONSTANTS: [(&str, &str); 21] = [
    ("admin.RELAYS", admin::statements::RELAYS),
    ("admin.PROCESSES", admin::statements::PROCESSES),
    ("admin.PRESENT", admin::statements::PRESENT),
    ("admin.BACKLOG", admin::statements::BACKLOG),
    ("admin.BLOCKER", admin::statements::BLOCKER),
    ("admin.LOCK_ENTRIES", admin::statements::LOCK_ENTRIES),
    ("admin.EDITED_SINCE", admin::statements::EDITED_SINCE),
    ("admin.LOOK_AT_ENTRIES", admin::statements::LOOK_AT_ENTRIES),
    ("admin.LOCK_WAITING", admin::statements::LOCK_WAITING),
    ("admin.SET_DUE", admin::statements::SET_DUE),
    ("admin.OVERDUE", admin::statements::OVERDUE),
    ("admin.REQUEUE", admin::statements::REQUEUE),
    ("admin.DISCARD", admin::statements::DISCARD),
    ("admin.AUDIT", admin::statements::AUDIT),
    ("entries.FIRSTS", entries::statements::FIRSTS),
    ("entries.IDENTITY", entries::statements::IDENTITY),
    ("retention.LIST", retention::LIST),
    ("retention.EXPIRE", retention::EXPIRE),
    ("retention.HOLDER", fragments::HOLDER),
    ("retention.FORGET", retention::FORGET),
    ("retention.FORGET_DECISIONS", retention::FORGET_DECISIONS),
];

/// Returns every statement, those of producers included, except those of `store` and `lock_holder`,
/// which run once when a connection is made or an error is explained: they read the server's
/// catalogs.
#[must_use]
pub fn statements() -> Vec<Listed> {
    let constants = CONSTANTS.iter().map(|(name, text)| Listed::constant(name, text));
    [
        Listed::all_of("statements", statements::Statements::new(None).each()),
        Listed::all_of("facts", facts::Statements::new(None).each()),
        Listed::all_of("rebase", rebase::statements::Statements::new(None).each()),
        Listed::all_of("admin", admin::statements::Statements::new(None).each()),
        Listed::all_of("entries", entries::statements::Statements::new(None).each()),
        Listed::all_of("reconcile", reconcile::Statements::new(None).each()),
        Listed::all_of("tables", tables::Statements::new(None).each()),
        constants.collect(),
        of_producers(),
    ]
    .concat()
}
