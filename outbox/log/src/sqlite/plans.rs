//! Statements of operators that must not read a whole table.

use migrations::{Line, Migrator, Statement};
use sqlx::{AssertSqlSafe, Connection as _, Sqlite, SqliteConnection};

use super::entries::{find_statement, search_statements};
use super::statements::SQL;
use super::tables::texts;

/// Returns how SQLite carries out a statement, one step per line.
async fn plan(statement: &Statement) -> Vec<String> {
    let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
    Migrator::<Sqlite>::new(Line::Outbox).up(&mut connection).await.unwrap();
    let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {}", statement.as_str()));
    let steps: Vec<(i64, i64, i64, String)> =
        sqlx::query_as(explain).fetch_all(&mut connection).await.unwrap();
    steps.into_iter().map(|(.., step)| step).collect()
}

/// Goal: the cost of looking up a message does not depend on the length of the log. Oracle: the
/// plan scans no table except the result of the search.
#[tokio::test]
async fn a_message_is_looked_up_by_an_index() {
    let steps = plan(find_statement()).await;
    let scans: Vec<&String> = steps.iter().filter(|step| step.starts_with("SCAN")).collect();
    assert_eq!(scans, ["SCAN n"], "{steps:#?}");
    assert!(steps.iter().any(|step| step.starts_with("SEARCH outbox_message")), "{steps:#?}");
}

/// Goal: a step of a search reads its own part of the log, in its order. Oracle: the plans scan no
/// table but results and headers, and sort nothing.
#[tokio::test]
async fn a_search_reads_a_part_of_the_log_in_its_order() {
    for statement in search_statements() {
        let steps = plan(statement).await;
        let is_bounded = |step: &&String| !step.starts_with("SCAN outbox") && !step.contains("TEMP B-TREE");
        assert!(steps.iter().all(|step| is_bounded(&step)), "{steps:#?}");
        assert!(
            steps.iter().any(|step| step.contains("USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)")),
            "{steps:#?}"
        );
    }
}

/// Goal: the audit of one relay does not read the decisions of the others. Oracle: the index in the
/// plans, which begins with the relay, and no sort.
#[tokio::test]
async fn the_audit_of_a_relay_is_read_by_its_index() {
    let texts = texts(None);
    for (statement, index) in [
        (&texts.decisions, "outbox_audit_relay_idx (relay=?"),
        (&texts.operations, "outbox_operation_relay_idx (relay=?"),
        (&texts.operations_of, "outbox_operation_action_idx (relay=? AND action=?"),
    ] {
        let steps = plan(statement).await;
        assert!(steps.len() == 1 && steps[0].contains(index), "{steps:#?}");
    }
}

/// Goal: held entries are found without reading everything that is parked. Oracle: the index in the
/// plan, which has only these, and no sort.
#[tokio::test]
async fn held_entries_are_read_in_the_order_of_their_index() {
    let steps = plan(&texts(None).list_held).await;
    assert!(steps.iter().any(|step| step.contains("outbox_exception_queue_idx")), "{steps:#?}");
    assert!(!steps.iter().any(|step| step.contains("TEMP B-TREE")), "{steps:#?}");
}

/// Goal: scheduled and discarded exceptions are found without reading retried ones, however many
/// there are. Oracle: the index in the plans, which has only one of the two, and no sort.
#[tokio::test]
async fn what_is_due_is_read_by_the_index_of_its_kind() {
    for (statement, index) in [
        (&SQL.due, "outbox_exception_due_idx"),
        (&SQL.next_due, "outbox_exception_due_idx"),
        (&SQL.retried, "outbox_exception_retry_idx"),
        (&SQL.next_retried, "outbox_exception_retry_idx"),
    ] {
        let steps = plan(statement).await;
        assert!(steps.iter().any(|step| step.contains(index)), "{steps:#?}");
        assert!(!steps.iter().any(|step| step.contains("TEMP B-TREE")), "{steps:#?}");
    }
}

/// Goal: probes and requeued entries are found without reading everything that is retried, or all
/// decisions. Oracle: the indexes in the plan.
#[tokio::test]
async fn what_is_retried_first_is_read_by_its_id() {
    let steps = plan(&SQL.first).await;
    for (alias, index) in [("e", "relay=? AND shard=? AND id=?"), ("outbox_audit", "outbox_audit_relay_idx")]
    {
        let of_table = |step: &&String| step.starts_with(&format!("SEARCH {alias} "));
        let found: Vec<_> = steps.iter().filter(of_table).collect();
        assert!(found.len() == 1 && found[0].contains(index), "{alias}: {steps:#?}");
    }
}

/// Goal: a few held entries are counted and listed without reading everything that is parked.
/// Oracle: the index in the plans, which has only these, and no search by another one.
#[tokio::test]
async fn few_held_entries_are_listed_by_their_index() {
    let texts = texts(None);
    for statement in [&texts.held_len, &texts.list_few_held, &texts.parked_few_held] {
        let steps = plan(statement).await;
        let of_exceptions = || steps.iter().filter(|step| step.contains("outbox_exception"));
        assert!(of_exceptions().count() > 0, "{steps:#?}");
        assert!(of_exceptions().all(|step| step.contains("outbox_exception_queue_idx")), "{steps:#?}");
    }
}
