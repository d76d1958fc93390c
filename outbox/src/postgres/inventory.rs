//! Every statement of the outbox on PostgreSQL, for the test that counts what each of them reads.

use migrations::{Statement, Template};

use crate::postgres::rebase::Rebase;
use crate::postgres::store::ONE_PLAN_HERE;
use crate::postgres::{
    admin, enqueue, entries, facts, operations, pause, reconcile, retention, statements, transaction_ids,
};

/// A statement with its name in the program.
#[derive(Debug, Clone)]
pub struct Listed {
    /// `module.name`.
    pub name: String,
    /// The SQL. The `search_path` finds its tables.
    pub sql: String,
}

/// The planner settings of the relay's sessions, for one transaction.
pub const ONE_PLAN: &str = ONE_PLAN_HERE;

/// Statements that are constants of their modules.
const CONSTANTS: [(&str, &str); 28] = [
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
    ("retention.FORGET", retention::FORGET),
    ("retention.FORGET_DECISIONS", retention::FORGET_DECISIONS),
    ("enqueue.RUNNING", enqueue::RUNNING),
    ("transaction_ids.TAKE", transaction_ids::TAKE),
];

/// Returns every statement, except those that `store` runs once when it connects: they read the
/// server's catalogs.
#[must_use]
pub fn statements() -> Vec<Listed> {
    fn listed(module: &str, each: Vec<(&'static str, &Statement)>) -> Vec<Listed> {
        let of = |(name, statement): (&str, &Statement)| Listed {
            name: format!("{module}.{name}"),
            sql: statement.as_str().to_owned(),
        };
        each.into_iter().map(of).collect()
    }
    let constants = CONSTANTS.map(|(name, text)| Listed {
        name: name.to_owned(),
        sql: Template::new(text).render().as_str().to_owned(),
    });
    [
        listed("statements", statements::Statements::new(None).each()),
        listed("facts", facts::Statements::new(None).each()),
        listed("rebase", Rebase::new(None).each()),
        listed("enqueue", enqueue::Statements::new(None).each()),
        listed("admin", admin::Statements::new(None).each()),
        listed("entries", entries::Statements::new(None).each()),
        listed("reconcile", reconcile::Statements::new(None).each()),
        constants.to_vec(),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A constant that is missing in the list would never be measured.
    #[test]
    fn every_statement_that_is_a_constant_is_listed() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/postgres");
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let module = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let text = std::fs::read_to_string(&path).unwrap();
            // `store` has queries of the catalogs, and `statements` parts of statements that are
            // listed whole.
            if ["inventory", "store", "statements"].contains(&module.as_str()) {
                continue;
            }
            let lines = text.lines().filter_map(|line| line.strip_prefix("pub(super) ").or(Some(line)));
            for (name, text) in
                lines.filter_map(|line| line.strip_prefix("const ")?.split_once(": &str = \""))
            {
                // SQL begins with a capital letter, here or on the next line; other texts do not.
                let is_statement = text.is_empty() || text.starts_with(char::is_uppercase);
                let name = format!("{module}.{name}");
                assert!(!is_statement || CONSTANTS.iter().any(|(listed, _)| *listed == name), "{name}");
            }
        }
    }
}
