//! Checks of open and prepared transactions, replication slots and standbys, which hold rows,
//! history and commits back. Pure.

use std::time::Duration;

use super::common::DATABASE;
use super::facts::PostgresFacts;
use super::report::{CheckState, Finding};
use super::text::{age, bytes};
use crate::status::statement_that_ends_session;
use crate::tables::named_role;

/// Rows of an open transaction cannot be read, and its snapshot keeps dead rows.
const TRANSACTION_WARN: Duration = Duration::from_secs(60);
const TRANSACTION_FAIL: Duration = Duration::from_secs(3_600);
/// The coordinator of a prepared transaction this old is probably lost.
const PREPARED_WARN: Duration = Duration::from_secs(60);
const SLOT_LOG_WARN: u64 = 1 << 30;
/// A tenth of the 2³¹ transactions at which PostgreSQL stops.
const SLOT_TRANSACTIONS_WARN: u64 = 200_000_000;

pub(super) fn check(facts: &PostgresFacts) -> Vec<Finding> {
    vec![transactions(facts), prepared(facts), standby(facts), slots(facts)]
}

fn transactions(facts: &PostgresFacts) -> Finding {
    let check = "transactions";
    let oldest = facts.transactions.iter().find_map(|transaction| Some((transaction, transaction.age?)));
    match oldest {
        Some((transaction, old)) if old >= TRANSACTION_WARN => {
            let state = if old >= TRANSACTION_FAIL { CheckState::Fail } else { CheckState::Warn };
            let measured = format!(
                "pid {} of {} {:?}, {} for {}",
                transaction.pid,
                transaction.role,
                transaction.application,
                transaction.state,
                age(old)
            );
            let remedy = format!(
                "while it is open, its rows are not published and retention deletes nothing: end it ({}), \
                 and set idle_in_transaction_session_timeout for its role",
                statement_that_ends_session(transaction.pid)
            );
            Finding::unless(check, DATABASE, measured, Some((state, remedy)))
        }
        // Warns even if none is open: otherwise a transaction that matters would go unnoticed.
        _ if !facts.sees_sessions => unseen(check, facts),
        Some((_, old)) => {
            Finding::pass(check, DATABASE, format!("the oldest has been open for {}", age(old)))
        }
        None => Finding::pass(check, DATABASE, "none is open"),
    }
}

/// Warns of transactions whose ages this role does not see. The oldest that has written is the
/// first, by its transaction id.
fn unseen(check: &'static str, facts: &PostgresFacts) -> Finding {
    let grant = format!("GRANT pg_read_all_stats TO {}", named_role(&facts.role));
    let mut open = facts.transactions.iter().filter(|open| open.age.is_none()).peekable();
    let Some(first) = open.peek().map(|open| open.pid) else {
        let measured =
            format!("none is open; {} cannot see the ages of other roles' transactions", facts.role);
        let remedy = format!(
            "{grant}; without it, metrics count the age from when the relay first saw the transaction"
        );
        return Finding::warn(check, DATABASE, measured, remedy);
    };
    let named = open.map(|open| format!("{} of {} {:?}", open.pid, open.role, open.application));
    let named: Vec<String> = named.collect();
    let measured = format!("open in pids {}; {} cannot see their ages", named.join(", "), facts.role);
    let end = statement_that_ends_session(first);
    let remedy = format!(
        "while one of them is open, what it has written is not published, and retention deletes nothing: end \
         the one that relay status names, or the first ({end}), and set idle_in_transaction_session_timeout \
         for its role. To see their ages: {grant};"
    );
    Finding::warn(check, DATABASE, measured, remedy)
}

fn prepared(facts: &PostgresFacts) -> Finding {
    let check = "prepared-transactions";
    match facts.prepared.first() {
        None => Finding::pass(check, DATABASE, "none"),
        Some(oldest) => {
            let measured = format!("{:?} of {} for {}", oldest.gid, oldest.role, age(oldest.age));
            let problem = (oldest.age >= PREPARED_WARN).then(|| {
                let remedy = "it holds rows back until it ends, even across restarts: run COMMIT PREPARED or \
                              ROLLBACK PREPARED, as its coordinator decided";
                (CheckState::Fail, remedy.to_owned())
            });
            Finding::unless(check, DATABASE, measured, problem)
        }
    }
}

fn standby(facts: &PostgresFacts) -> Finding {
    let check = "synchronous-standby";
    let names = facts.standby_names.trim();
    if names.is_empty() {
        return Finding::pass(check, DATABASE, "commits wait for none");
    }
    let required = required_standbys(names);
    let named = format!("synchronous_standby_names = {names:?}, in sync: {} of {required}", facts.standbys);
    if facts.standbys >= required {
        return Finding::pass(check, DATABASE, named);
    }
    if !facts.sees_sessions {
        let remedy =
            format!("GRANT pg_read_all_stats TO {}, which shows the standbys", named_role(&facts.role));
        return Finding::unknown(check, DATABASE, named, remedy);
    }
    let remedy = "every commit waits, with its locks, until enough of these standbys are in sync: start \
                  them, or remove their names from the setting";
    Finding::fail(check, DATABASE, named, remedy)
}

/// Returns how many standbys a commit waits for: the number in `FIRST 2 (a, b)`, `ANY 2 (a, b)` or
/// `2 (a, b)`, and 1 for a list of names.
fn required_standbys(names: &str) -> i64 {
    let Some((head, _)) = names.split_once('(') else { return 1 };
    let number = head.split_whitespace().next_back().and_then(|word| word.parse().ok());
    number.unwrap_or(1)
}

fn slots(facts: &PostgresFacts) -> Finding {
    let check = "replication-slots";
    let is_old = |slot: &&super::facts::Slot| {
        !slot.active || slot.log_bytes >= SLOT_LOG_WARN || slot.transactions >= SLOT_TRANSACTIONS_WARN
    };
    match facts.slots.iter().find(is_old) {
        None if facts.slots.is_empty() => Finding::pass(check, DATABASE, "none"),
        None => Finding::pass(check, DATABASE, format!("{}, all active", facts.slots.len())),
        Some(slot) => {
            let measured = format!(
                "{}: {}, keeps {} of WAL and the rows of {} transactions",
                slot.name,
                if slot.active { "active" } else { "inactive" },
                bytes(slot.log_bytes),
                slot.transactions
            );
            let remedy = format!(
                "the disk fills up until the slot is read: start its reader or run SELECT \
                 pg_drop_replication_slot('{}'), and set max_slot_wal_keep_size",
                slot.name
            );
            Finding::warn(check, DATABASE, measured, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::facts::{OpenTransaction, PreparedTransaction, Slot};

    fn facts() -> PostgresFacts {
        crate::doctor::postgres::tests::healthy()
    }

    #[test]
    fn the_oldest_transaction_is_named_with_its_pid_and_age() {
        let mut facts = facts();
        let open = |seconds: Option<u64>| OpenTransaction {
            pid: 4711,
            role: String::from("shop"),
            application: String::from("checkout"),
            state: String::from("idle in transaction"),
            age: seconds.map(Duration::from_secs),
        };
        for (seconds, sees, state) in [
            (Some(5), true, CheckState::Pass),
            (Some(120), true, CheckState::Warn),
            (Some(7_200), true, CheckState::Fail),
            (None, false, CheckState::Warn),
        ] {
            facts.transactions = vec![open(seconds)];
            facts.sees_sessions = sees;
            let finding = transactions(&facts);
            assert_eq!(finding.state, state, "{finding:?}");
            assert!(state == CheckState::Pass || finding.measured.contains("4711"), "{finding:?}");
            // Also without the right to see its age, the remedy can be pasted.
            let remedy = finding.remedy.unwrap_or_default();
            let ends = remedy.contains("SELECT pg_terminate_backend(4711)");
            assert!(state == CheckState::Pass || ends, "{remedy}");
        }
    }

    #[test]
    fn a_role_that_does_not_see_ages_is_told_before_it_matters() {
        let mut facts = facts();
        facts.sees_sessions = false;
        for (role, grant) in [
            ("orders_relay", "GRANT pg_read_all_stats TO orders_relay;"),
            ("Orders-relay", "GRANT pg_read_all_stats TO \"Orders-relay\";"),
        ] {
            facts.role = role.to_owned();
            let finding = transactions(&facts);
            assert_eq!(finding.state, CheckState::Warn, "{finding:?}");
            assert!(finding.remedy.as_deref().is_some_and(|it| it.starts_with(grant)), "{finding:?}");
        }
    }

    #[test]
    fn forgotten_slots_and_prepared_transactions_are_told() {
        let mut facts = facts();
        let age = Duration::from_secs(90);
        facts.prepared = vec![PreparedTransaction { gid: String::from("x"), role: String::from("r"), age }];
        facts.slots = vec![Slot { name: String::from("cdc"), active: false, log_bytes: 0, transactions: 0 }];
        assert_eq!(prepared(&facts).state, CheckState::Fail);
        assert_eq!(slots(&facts).state, CheckState::Warn);
        facts.slots[0].active = true;
        assert_eq!(slots(&facts).state, CheckState::Pass);
    }
}
