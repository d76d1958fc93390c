//! Statements that a consumer repeats every few seconds, and that must not read a whole table.

use migrations::{Line, Migrator, Statement};
use sqlx::{AssertSqlSafe, Connection as _, Sqlite, SqliteConnection};

use crate::statements::{Shared, Texts as _};

fn statements() -> Shared {
    Sqlite::shared_statements(&Sqlite::statements(None))
}

/// Returns how SQLite carries out a statement, one step per line.
async fn plan(statement: &Statement) -> Vec<String> {
    let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
    Migrator::<Sqlite>::new(Line::Inbox).up(&mut connection).await.unwrap();
    let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {}", statement.as_str()));
    let steps: Vec<(i64, i64, i64, String)> =
        sqlx::query_as(explain).fetch_all(&mut connection).await.unwrap();
    steps.into_iter().map(|(.., step)| step).collect()
}

/// Goal: the search for requested redrives reads neither decisions that are done, nor the requests
/// before those that it returns. Oracle: the index in the plan, and no sort.
#[tokio::test]
async fn requests_are_read_in_the_order_of_their_index() {
    let steps = plan(&statements().requests).await;
    assert!(
        steps.len() == 1 && steps[0].contains("inbox_audit_open_idx (consumer=? AND seq>?)"),
        "{steps:#?}"
    );
}

/// Goal: the first held message of a key is found, and what holds it, however many messages the
/// key has. Oracle: the indexes in the plan.
#[tokio::test]
async fn held_keys_are_read_by_their_indexes() {
    let steps = plan(&statements().held_firsts).await;
    let is_scan = |step: &&String| step.starts_with("SCAN n") || step.starts_with("SCAN d");
    assert!(!steps.iter().any(|step| is_scan(&step)), "{steps:#?}");
    let of_key = "inbox_dead_letter_key_idx (consumer=? AND scope=? AND topic=? AND key=? AND seq<?)";
    assert!(steps.iter().any(|step| step.contains(of_key)), "{steps:#?}");
}
