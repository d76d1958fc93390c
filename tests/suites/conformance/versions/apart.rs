//! Several migrators at once, and the time limits of a migration on PostgreSQL.

use std::time::Duration;

use migrations::{Line, Migrator};
use proxy::{Conditions, Flow, Pass};
use sqlx::{Connection as _, Executor as _, PgConnection, Postgres, Sqlite};
use tests::{Database, Dialect, Failure, Outcome, Stage};

use super::practice::{ALL, limited as limited_program, program, waiting as waiting_program};
use super::{populated, recorded, up};

tests::cases! { "migrations/versions/{on}/{case}":
    postgres {
        ten_processes_migrate_at_once = ten_on_postgres,
        a_role_that_limits_its_statements_migrates = a_limited_role,
        a_table_in_use_fails_within_the_lock_timeout = a_table_in_use,
        only_an_idle_transaction_has_a_limit = only_an_idle_transaction,
        the_migration_that_is_waited_for_is_named = the_holder_is_named,
        a_script_waits_its_time_for_another_migration = a_script_waits_its_time,
    }
    sqlite { ten_processes_migrate_at_once = ten_on_sqlite }
    night postgres { a_migrator_whose_host_is_gone_stops_no_other = a_host_that_is_gone }
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

/// Goal: limits of a role that are meant for its services end no migration, whose duration depends
/// on the size of a table. Oracle: a migration that waits for another one longer than the role's
/// limits allow is applied.
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
    let waits = "SELECT coalesce(bool_or(query LIKE '%pg_try_advisory_xact_lock%'
        AND clock_timestamp() - xact_start > '1 s'), false) FROM pg_stat_activity WHERE pid = $1";
    // On a separate connection: within a transaction, each query of this view returns what the
    // first one returned.
    let mut look = PgConnection::connect(&db.url).await?;
    while !up.is_finished() {
        let has_waited: bool = sqlx::query_scalar(waits).bind(pid).fetch_one(&mut look).await?;
        if has_waited {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    look.close().await?;
    other.execute("COMMIT").await?;
    assert_eq!(up.await??, ALL);
    other.close().await?;
    Ok(())
}

/// Goal: a statement of a migration may take any time, but the locks of a migrator that has
/// disappeared are released. Oracle: the limits that a migration finds, with and without those of
/// its role.
async fn only_an_idle_transaction(stage: Stage) -> Outcome {
    for limits in ["SET statement_timeout = '1s'; SET idle_in_transaction_session_timeout = '1s'", "SELECT 1"]
    {
        let db = Database::<Postgres>::empty(&stage).await?;
        let mut limited = PgConnection::connect(&db.url).await?;
        limited.execute(limits).await?;
        limited_program().up(&mut limited).await?;
        let found =
            db.texts("SELECT concat_ws(' ', statement, idle, transaction) FROM outbox_practice").await?;
        assert_eq!(found, ["0 1min 0"], "{limits}");
        limited.close().await?;
    }
    Ok(())
}

/// Goal: a migrator that waits for another one names it, and does not wait forever. Oracle: the
/// error names process, application and the wait; nothing is applied, and the connection can be
/// used again, inside a transaction of the caller as well.
async fn the_holder_is_named(stage: Stage) -> Outcome {
    let db = Database::<Postgres>::empty(&stage).await?;
    let mut other = PgConnection::connect(&db.url).await?;
    other.execute("SET application_name = 'a forgotten psql'").await?;
    other.execute("BEGIN; SELECT pg_advisory_xact_lock(8031170788430771316)").await?;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut other).await?;
    let briefly = program::<Postgres>(ALL).wait_max(Duration::from_secs(1));
    let mut waiting = PgConnection::connect(&db.url).await?;
    let alone = briefly.up(&mut waiting).await;
    let mut tx = waiting.begin().await?;
    let inside = briefly.up(&mut tx).await;
    tx.rollback().await?;
    let pid = format!("s: pid {pid} of ");
    for ended in [alone, inside] {
        let told = ended.err().ok_or("it was applied")?.to_string();
        for part in [pid.as_str(), "'a forgotten psql', idle in transaction, since "] {
            assert!(told.contains(part), "{part:?} is not in {told}");
        }
    }
    other.execute("COMMIT").await?;
    assert_eq!(briefly.up(&mut waiting).await?.len(), ALL);
    other.close().await?;
    waiting.close().await?;
    Ok(())
}

/// Goal: a script that an administrator runs by hand waits for another migration, names it, and
/// does not wait forever. Oracle: the error names process, application and the wait, and has the
/// SQLSTATE of a lock timeout; nothing is applied, and the script succeeds once the other one has
/// ended, also during its wait.
async fn a_script_waits_its_time(stage: Stage) -> Outcome {
    let db = Database::<Postgres>::empty(&stage).await?;
    let mut other = PgConnection::connect(&db.url).await?;
    other.execute("SET application_name = 'a forgotten psql'").await?;
    other.execute("BEGIN; SELECT pg_advisory_xact_lock(8031170788430771316)").await?;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut other).await?;
    let mut by_hand = PgConnection::connect(&db.url).await?;
    let briefly = Migrator::<Postgres>::new(Line::Outbox).wait_max(Duration::from_millis(500));
    let script = briefly.sql(1..=1)?;
    let running = sqlx::raw_sql(sqlx::AssertSqlSafe(script)).execute(&mut by_hand);
    let ended = tokio::time::timeout(Duration::from_secs(60), running).await;
    let error = ended.map_err(|_| "the script waits for ever")?.err().ok_or("it was applied")?;
    let told = error.to_string();
    let named = format!("within 0.5 s: pid {pid} of ");
    for part in [named.as_str(), "'a forgotten psql', idle in transaction"] {
        assert!(told.contains(part), "{part:?} is not in {told}");
    }
    let code = error.as_database_error().and_then(|error| error.code());
    assert_eq!(code.as_deref(), Some("55P03"), "{error}");
    by_hand.execute("ROLLBACK").await?;
    assert!(briefly.status(&mut by_hand).await?.applied.is_empty());

    let script = Migrator::<Postgres>::new(Line::Outbox).sql(1..=1)?;
    let waiting: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut by_hand).await?;
    let running = tokio::spawn(async move {
        sqlx::raw_sql(sqlx::AssertSqlSafe(script)).execute(&mut by_hand).await?;
        Ok::<_, sqlx::Error>(by_hand)
    });
    let waits = format!("SELECT coalesce(wait_event, '') FROM pg_stat_activity WHERE pid = {waiting}");
    tests::eventually(
        "the script waits",
        async || Ok((db.texts(&waits).await? == ["PgSleep"]).then_some(())),
    )
    .await?;
    other.execute("COMMIT").await?;
    let mut by_hand = running.await??;
    briefly.check(&mut by_hand).await?;
    other.close().await?;
    by_hand.close().await?;
    Ok(())
}

/// Goal: a migrator whose network disappears while it holds locks does not stop another one.
/// Oracle: the other one is applied once the server has ended the lost session, with the limit of
/// 60 s.
async fn a_host_that_is_gone(stage: Stage) -> Outcome {
    let db = Database::<Postgres>::empty(&stage).await?;
    db.execute("CREATE TABLE gate (id integer)").await?;
    let (pool, wire) = crate::proxied::pool(&db.url, 1).await;
    let mut gate = db.admin.begin().await?;
    sqlx::query("LOCK TABLE gate").execute(&mut *gate).await?;
    let mut gone = pool.acquire().await?;
    let lost = tokio::spawn(async move { waiting_program().up(&mut gone).await.map(<[_]>::len) });
    let waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'gate'::regclass AND NOT granted";
    while db.integer(waiting).await? == 0 {
        assert!(!lost.is_finished(), "it did not wait");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let nothing = Flow { pass: Pass::Lose, ..Flow::default() };
    wire.set(Conditions { requests: nothing, answers: nothing, ..Conditions::default() });
    gate.rollback().await?;
    let others = tokio::time::timeout(Duration::from_secs(180), up(&db, &waiting_program())).await;
    assert_eq!(others.map_err(|_| "it still waits for the lost one")??, ["0001_waiting"]);
    lost.abort();
    Ok(())
}

/// Goal: a session behind a migration that waits for a table waits no longer than the role's lock
/// timeout. Oracle: the migration fails while a transaction uses the table, nothing of it is
/// applied, and it succeeds afterwards.
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
