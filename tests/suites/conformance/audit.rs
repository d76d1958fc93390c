//! Decisions of operators are kept for years, and then forgotten.

use inbox::keys::{IdempotencyKeys, KeyOptions, KeyStore};
use inbox::{Inbox, InboxOptions};
use libtest_mimic::Trial;
use outbox::Outbox;
use saga::Sagas;
use sqlx::{Postgres, Sqlite};
use tests::{Backend, Database, Dialect, Outcome, Stage, trial};

/// Days ago, as each database has it.
const POSTGRES: &str = "clock_timestamp() - interval '1 day' * {days}";
const SQLITE: &str = "(unixepoch() - 86400 * {days}) * 1000000";

pub(crate) fn trials() -> Vec<Trial> {
    let name = |dialect: &str| format!("audit/{dialect}/decisions_outlive_their_retention_by_little");
    vec![
        trial(name("postgres"), &[Backend::Postgres], |stage| async move {
            let db = Database::<Postgres>::migrated(&stage).await?;
            outlive(&db, POSTGRES).await?;
            cannot_be_taken_back(&db).await
        }),
        trial(name("sqlite"), &[Backend::Sqlite], |stage: Stage| async move {
            outlive(&Database::<Sqlite>::migrated(&stage).await?, SQLITE).await
        }),
    ]
}

/// Goal: decisions older than three years are removed by services in their course, with the rights
/// that they have; younger ones stay, and so does a redrive that nobody has carried out. Oracle:
/// the rows.
async fn outlive<DB>(db: &Database<DB>, ago: &str) -> Outcome
where
    DB: Dialect + inbox::Dialect + KeyStore + saga::Dialect,
{
    for days in [1_200, 1_000] {
        let at = ago.replace("{days}", &days.to_string());
        for done in ["'discarded', 1", "NULL, NULL"] {
            let done = done.replace(", 1", &format!(", {at}"));
            let letter = format!("00000000-0000-0000-0000-00000000{days}");
            db.execute(&format!(
                "INSERT INTO inbox_audit (actor, note, dead_letter, consumer, action, at, outcome, done_at) \
                 VALUES ('ann', 'x', '{letter}', 'billing', 'discard', {at}, {done})"
            ))
            .await?;
        }
        for insert in [
            "idempotency_audit (actor, note, action, scope, operation, key, at) VALUES ('ann', 'x', 'discard', 't', 'o', 'k'",
            "saga_audit (actor, note, action, type, id, at) VALUES ('ann', 'x', 'retry', 'checkout', '7'",
        ] {
            db.execute(&format!("INSERT INTO {insert}, {at})")).await?;
        }
    }
    let inbox = Inbox::open(db.consumer.clone(), InboxOptions::default()).await?;
    assert_eq!(inbox.maintain().await?.decisions_purged, 1);
    IdempotencyKeys::open(db.service.clone(), KeyOptions::default()).await?.maintain().await?;
    let sagas = Sagas::builder(db.service.clone(), Outbox::new()).open().await?;
    assert_eq!(sagas.forget_decisions().await?, 1);
    for (table, left) in [("inbox_audit", 3), ("idempotency_audit", 1), ("saga_audit", 1)] {
        assert_eq!(db.integer(&format!("SELECT count(*) FROM {table}")).await?, left, "{table}");
    }
    Ok(())
}

/// Goal: no service removes what was decided of late. Oracle: the database refuses both ways.
async fn cannot_be_taken_back(db: &Database<Postgres>) -> Outcome {
    for (pool, line) in [(&db.consumer, "inbox"), (&db.service, "idempotency"), (&db.service, "saga")] {
        for (sql, code) in [
            (format!("SELECT {line}_purge_audit(now() - interval '29 days', 10)"), "22023"),
            (format!("DELETE FROM {line}_audit"), "42501"),
        ] {
            let answer = sqlx::query(sqlx::AssertSqlSafe(sql.clone())).execute(pool).await;
            let error = answer.err().ok_or_else(|| format!("{sql} was not refused"))?;
            assert_eq!(error.as_database_error().and_then(|e| e.code()).as_deref(), Some(code), "{sql}");
        }
    }
    Ok(())
}
