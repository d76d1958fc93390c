//! Several migrators at once, and the time limits of a migration on PostgreSQL.

use std::time::Duration;

use libtest_mimic::Trial;
use sqlx::{Connection as _, Executor as _, PgConnection, Postgres, Sqlite};
use tests::{Backend, Database, Dialect, Failure, Outcome, Stage, trial};

use super::practice::{ALL, program};
use super::{populated, recorded, up};

pub(super) fn trials() -> Vec<Trial> {
    let on = |name: &str| format!("migrations/versions/{name}");
    let postgres = &[Backend::Postgres];
    vec![
        trial(on("postgres/ten_processes_migrate_at_once"), postgres, ten_on_postgres),
        trial(on("sqlite/ten_processes_migrate_at_once"), &[Backend::Sqlite], ten_on_sqlite),
        trial(on("postgres/a_role_that_limits_its_statements_migrates"), postgres, a_limited_role),
        trial(on("postgres/a_table_in_use_fails_within_the_lock_timeout"), postgres, a_table_in_use),
    ]
}

/// Migrates with ten processes at once. Returns how many migrations each has applied, in ascending
/// order.
async fn ten_at_once<DB: Dialect>(url: &str) -> Result<Vec<usize>, Failure> {
    let up = |url: String| async move {
        let pool = outbox::pool::<DB>(&url).await?;
        let mut connection = pool.acquire().await?;
        let applied = program::<DB>(ALL).up(&mut connection).await?.len();
        program::<DB>(ALL).check(&mut connection).await?;
        drop(connection);
        pool.close().await;
        Ok::<_, Failure>(applied)
    };
    let tasks: Vec<_> = (0..10).map(|_| tokio::spawn(up(url.to_owned()))).collect();
    let mut applied = Vec::new();
    for task in tasks {
        applied.push(task.await??);
    }
    applied.sort_unstable();
    Ok(applied)
}

/// Goal: processes that start together migrate once. Oracle: one of them applied every version, and
/// all of them found the schema complete.
async fn ten_on_postgres(stage: Stage) -> Outcome {
    let db = Database::<Postgres>::empty(&stage).await?;
    assert_eq!(ten_at_once::<Postgres>(&db.url).await?, [0, 0, 0, 0, 0, 0, 0, 0, 0, ALL]);
    Ok(())
}

/// The moment in which all ten switch a new file to the write-ahead log is short, so it tries many
/// files.
async fn ten_on_sqlite(stage: Stage) -> Outcome {
    for _ in 0..20 {
        let db = Database::<Sqlite>::empty(&stage).await?;
        assert_eq!(ten_at_once::<Sqlite>(&db.url).await?, [0, 0, 0, 0, 0, 0, 0, 0, 0, ALL]);
    }
    Ok(())
}

/// Goal: limits of a role that are meant for its services end no migration, which takes as long as
/// a table is large. Oracle: a migration that waits for another one longer than the role's limits
/// allow is applied.
async fn a_limited_role(stage: Stage) -> Outcome {
    let db = Database::<Postgres>::empty(&stage).await?;
    let mut other = PgConnection::connect(&db.url).await?;
    let knows = "SELECT count(*) FROM pg_settings WHERE name = 'transaction_timeout'";
    let known: i64 = sqlx::query_scalar(knows).fetch_one(&mut other).await?;
    let mut limits = vec!["statement_timeout", "idle_in_transaction_session_timeout"];
    limits.extend((known > 0).then_some("transaction_timeout"));

    other.execute("BEGIN; SELECT pg_advisory_xact_lock(8031170788430771316)").await?;
    let mut limited = PgConnection::connect(&db.url).await?;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut limited).await?;
    for limit in limits {
        Postgres::execute(&mut limited, &format!("SET {limit} = '500ms'")).await?;
    }
    let up = tokio::spawn(async move {
        let applied = program::<Postgres>(ALL).up(&mut limited).await;
        applied.map(|applied| applied.len())
    });
    let waits = "SELECT coalesce(bool_or(wait_event_type = 'Lock' AND clock_timestamp() - query_start > '1 s'), false)
        FROM pg_stat_activity WHERE pid = $1";
    while !up.is_finished() {
        let has_waited: bool = sqlx::query_scalar(waits).bind(pid).fetch_one(&mut other).await?;
        if has_waited {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    other.execute("COMMIT").await?;
    assert_eq!(up.await??, ALL);
    other.close().await?;
    Ok(())
}

/// Goal: a session behind a migration that waits for a table waits no longer than the role's
/// lock timeout. Oracle: the migration fails beside a transaction that uses the table, nothing of
/// it is applied, and it succeeds afterwards.
async fn a_table_in_use(stage: Stage) -> Outcome {
    let db = populated::<Postgres>(&stage).await?;
    let mut reader = db.admin.begin().await?;
    let rows: i64 =
        sqlx::query_scalar("SELECT count(*) FROM outbox_practice").fetch_one(&mut *reader).await?;
    let mut limited = PgConnection::connect(&db.url).await?;
    limited.execute("SET lock_timeout = '200ms'").await?;
    let failed = program::<Postgres>(ALL).up(&mut limited).await.err().ok_or("it was applied")?;
    assert!(format!("{failed:?}").contains("lock timeout"), "{failed:?}");
    limited.close().await?;
    assert_eq!((rows, recorded(&db).await?), (2, vec![String::from("0001_table")]));
    reader.rollback().await?;
    assert_eq!(up(&db, &program(ALL)).await?, ["0002_bytes", "0003_index"]);
    Ok(())
}
