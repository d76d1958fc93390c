//! The statement of docs/schema.md for an inbox that no consumer of the library maintains.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use sqlx::{Executor as _, PgPool, Postgres};

use super::database::Database;

tests::cases! { "inbox/purged_by_sql/{on}/{case}":
    on_postgres { the_documented_statement_removes_what_is_old }
}

const SCHEMA: &str = include_str!("../../../../docs/schema.md");

/// Returns the statement, with today's date instead of the example's.
fn documented() -> String {
    let (_, after) = SCHEMA.split_once("SELECT inbox_maintain('").unwrap();
    let (_, rest) = after.split_once('\'').unwrap();
    format!("SELECT inbox_maintain(current_date{}", rest.split_once("```").unwrap().0)
}

async fn texts(pool: &PgPool, query: &'static str) -> Vec<String> {
    sqlx::query_scalar(query).fetch_all(pool).await.unwrap()
}

/// Goal: an inbox without a consumer of the library stays bounded. Oracle: the rows that are left,
/// with the rights of a consumer.
async fn the_documented_statement_removes_what_is_old(database: &Database<Postgres>) {
    let made = "
        INSERT INTO inbox_attempt (consumer, scope, message_id, attempts, last_error, first_failed_at, next_at)
            SELECT 'billing', '', gen_random_uuid(), 1, age, now() - age::interval, now()
            FROM unnest(ARRAY['40 days', '1 day']) AS age;
        INSERT INTO inbox_dead_letter (id, consumer, scope, subject, fingerprint, topic, headers, payload, reason,
                error, attempts, origin, resolution, resolved_at)
            SELECT gen_random_uuid(), 'billing', '', gen_random_uuid(), '\\x00', 'orders', '[]', '\\x00', 'rejected',
                concat_ws(' ', resolution, age), 1, 'orders', resolution, now() - age::interval
            FROM (VALUES ('applied', '40 days'), ('discarded', '40 days'), ('applied_late', '40 days'),
                ('applied', '1 day'), (NULL, NULL)) AS letter(resolution, age)";
    database.pool.execute(made).await.unwrap();
    database.pool.execute(sqlx::AssertSqlSafe(documented())).await.unwrap();
    assert_eq!(texts(&database.pool, "SELECT last_error FROM inbox_attempt").await, ["1 day"]);
    let left = texts(&database.pool, "SELECT error FROM inbox_dead_letter ORDER BY error").await;
    assert_eq!(left, ["", "applied 1 day", "applied_late 40 days"]);
}
