//! Migrations, and the errors of relays on a schema that does not fit.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::outbox::support::{Database, TestDialect, granted, on, postgres_database, relay, source};
use migrations::{Identifier, Line, MigrateError, Migrator, SchemaError};
use outbox::{Dialect, NewMessage, Outbox};
use outbox_log::{LogError, LogOptions};
use sqlx::{Connection, Executor, PgConnection, Postgres, Sqlite};

cases! { "migrations/runner":
    every {
        a_schema_that_does_not_fit_is_explained,
        a_changed_migration_is_named,
    }
    postgres {
        ten_processes_migrate_postgres_at_once,
        the_printed_script_makes_the_same_schema_by_hand_in_a_schema_of_its_own,
        a_sequence_that_reserves_ids_is_refused,
        a_log_from_before_segments_is_taken_over,
        the_rights_on_the_log_are_carried_over,
        a_role_that_limits_its_statements_migrates,
    }
    sqlite {
        ten_processes_migrate_sqlite_at_once,
    }
}

/// Returns the number of migrations.
fn all(dialect: migrations::Dialect) -> usize {
    Line::Outbox.migrations(dialect).len()
}

/// Migrates with ten processes at once. Returns how many migrations each has applied, in ascending
/// order.
async fn ten_at_once<DB: Dialect>(url: &str) -> Vec<usize> {
    let up = |url: String| async move {
        let pool = outbox::pool::<DB>(&url).await.unwrap();
        let mut connection = pool.acquire().await.unwrap();
        let applied = Migrator::<DB>::new(Line::Outbox).up(&mut connection).await.unwrap().len();
        Migrator::<DB>::new(Line::Outbox).check(&mut connection).await.unwrap();
        drop(connection);
        pool.close().await;
        applied
    };
    let tasks: Vec<_> = (0..10).map(|_| tokio::spawn(up(url.to_owned()))).collect();
    let mut applied = Vec::new();
    for task in tasks {
        applied.push(task.await.unwrap());
    }
    applied.sort_unstable();
    applied
}

async fn ten_processes_migrate_sqlite_at_once() {
    let directory = tempfile::tempdir().unwrap();
    // The moment in which all ten switch a new file to the write-ahead log is short, so try many
    // files.
    for file in 0..20 {
        let url = format!("sqlite:{}?mode=rwc", directory.path().join(format!("{file}.db")).display());
        assert_eq!(
            ten_at_once::<Sqlite>(&url).await,
            [0, 0, 0, 0, 0, 0, 0, 0, 0, all(migrations::Dialect::Sqlite)]
        );
    }
}

async fn ten_processes_migrate_postgres_at_once() {
    let Some(url) = postgres_database().await else {
        return eprintln!("PostgreSQL: not run, OUTBOX_POSTGRES_URL is not set");
    };
    assert_eq!(
        ten_at_once::<Postgres>(&url).await,
        [0, 0, 0, 0, 0, 0, 0, 0, 0, all(migrations::Dialect::Postgres)]
    );
    on("drop", |db: Database<Postgres>| async move {
        let (_, name) = url.rsplit_once('/').unwrap();
        db.run(&format!("DROP DATABASE {name}")).await;
        db
    })
    .await;
}

async fn a_schema_that_does_not_fit_is_explained<DB: TestDialect>(db: Database<DB>) -> Database<DB> {
    let explained = async || match db.log.reader(&relay()).await.map(|_| ()).unwrap_err() {
        LogError::Operator { reason, .. } => reason,
        other => panic!("{other}"),
    };
    db.run(
        "INSERT INTO outbox_toolkit_migration (line, version, name, checksum) VALUES ('outbox', 99, 'later', '')",
    )
    .await;
    let reason = explained().await;
    assert!(reason.contains("version 99") && reason.contains("upgrade this program"), "{reason}");
    db.run("DELETE FROM outbox_toolkit_migration").await;
    let reason = explained().await;
    assert!(reason.contains("run `relay migrate up --line outbox`"), "{reason}");
    db.run("DROP TABLE outbox_toolkit_migration").await;
    assert!(explained().await.contains("missing"));
    db
}

async fn a_changed_migration_is_named<DB: TestDialect>(db: Database<DB>) -> Database<DB> {
    db.run("UPDATE outbox_toolkit_migration SET checksum = 'edited'").await;
    let mut connection = db.admin.acquire().await.unwrap();
    let error = Migrator::<DB>::new(Line::Outbox).up(&mut connection).await.unwrap_err();
    let MigrateError::Schema(SchemaError::Changed { version, name, .. }) = error else { panic!("{error}") };
    assert_eq!((version, name.as_str()), (1, "0001_log"));
    drop(connection);
    db
}

async fn the_printed_script_makes_the_same_schema_by_hand_in_a_schema_of_its_own() {
    on("the_printed_script", |db: Database<Postgres>| async move {
        let mut connection = PgConnection::connect(&db.url).await.unwrap();
        let by_migrator = Migrator::<Postgres>::new(Line::Outbox).snapshot(&mut connection).await.unwrap();
        let schema = Identifier::new("order").unwrap();
        let migrator = Migrator::<Postgres>::new(Line::Outbox).schema(Some(schema.clone()));
        let error = migrator.up(&mut connection).await.unwrap_err();
        assert!(matches!(error, MigrateError::NoSuchSchema { .. }), "{error}");

        connection.execute("CREATE SCHEMA \"order\"").await.unwrap();
        let script = migrator.sql(1..=all(migrations::Dialect::Postgres) as i32).unwrap();
        connection.execute(sqlx::AssertSqlSafe(script)).await.unwrap();
        migrator.check(&mut connection).await.unwrap();
        assert!(migrator.up(&mut connection).await.unwrap().is_empty());
        assert_eq!(migrator.snapshot(&mut connection).await.unwrap(), by_migrator);
        tests::roles::grant(&mut connection, &[Line::Outbox], Some(&schema)).await.unwrap();
        connection.close().await.unwrap();

        let outbox = Outbox::<Postgres>::builder().schema(Some(schema.clone())).build();
        let mut tx = outbox.begin(&db.pool).await.unwrap();
        tx.enqueue(NewMessage::new("orders")).await.unwrap();
        tx.commit().await.unwrap();
        db.run("SELECT \"order\".outbox_enqueue('orders', '')").await;
        let options = LogOptions::default().schema(Some(schema));
        let log = outbox_log::open(&db.relay_url(), source(), options).unwrap();
        let (_, cursor) = granted(&mut log.checkpoint_store(&relay(), "a").await.unwrap()).await;
        let reader = log.reader(&relay()).await.unwrap();
        assert_eq!(crate::outbox::support::Follower::new(reader, cursor).all().await.len(), 2);
        assert_eq!(db.rows().await, 0);
        db
    })
    .await;
}

async fn a_log_from_before_segments_is_taken_over() {
    let Some(url) = postgres_database().await else {
        return eprintln!("PostgreSQL: not run, OUTBOX_POSTGRES_URL is not set");
    };
    let mut old = PgConnection::connect(&url).await.unwrap();
    let script = Migrator::<Postgres>::new(Line::Outbox).sql(1..=2).unwrap();
    old.execute(sqlx::AssertSqlSafe(script)).await.unwrap();
    // The ids are of five days, so that they fall into several segments, with one gap.
    old.execute(
        "INSERT INTO outbox_message (message_id, topic, payload) SELECT (overlay(outbox_new_message_id()::text \
         PLACING left(lpad(to_hex((extract(epoch FROM now() - n * interval '10 hours') * 1000)::bigint), 12, '0'), 8) \
         FROM 1 FOR 8))::uuid, 'orders', '\\x00' FROM generate_series(1, 12) AS n; \
         DELETE FROM outbox_message WHERE id = 7; \
         GRANT INSERT (topic, payload), SELECT (id) ON outbox_message TO PUBLIC; \
         CREATE TABLE before AS SELECT * FROM outbox_message",
    )
    .await
    .unwrap();
    old.close().await.unwrap();

    let db = Database::<Postgres>::at(url).await;
    let same = "SELECT count(*) FROM outbox_message AS m JOIN before AS b \
        ON (m.xid, m.id, m.message_id, m.enqueued_at) = (b.xid, b.id, b.message_id, b.enqueued_at)";
    assert_eq!((db.rows().await, db.number(same).await), (11, 11));
    assert!(db.number("SELECT count(DISTINCT tableoid) FROM outbox_message").await > 3);
    db.enqueue([NewMessage::new("orders")]).await;
    assert_eq!(db.number("SELECT max(id) FROM outbox_message").await, 13);
    let again = "INSERT INTO outbox_message (message_id, topic, payload) SELECT message_id, 'orders', '' FROM before LIMIT 1";
    let error = db.admin.execute(again).await.unwrap_err().to_string();
    assert!(error.contains("message_id_key"), "{error}");
    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    assert_eq!(crate::outbox::support::Follower::new(db.reader().await, cursor).all().await.len(), 12);
    db.close().await;
}

async fn the_rights_on_the_log_are_carried_over() {
    let Some(url) = postgres_database().await else {
        return eprintln!("PostgreSQL: not run, OUTBOX_POSTGRES_URL is not set");
    };
    let mut admin = PgConnection::connect(&url).await.unwrap();
    let migrator = Migrator::<Postgres>::new(Line::Outbox);
    admin.execute(sqlx::AssertSqlSafe(migrator.sql(1..=2).unwrap())).await.unwrap();
    let grants = "GRANT INSERT (topic, payload), SELECT (id) ON outbox_message TO PUBLIC; \
        GRANT SELECT ON outbox_message TO pg_monitor; GRANT SELECT ON SEQUENCE outbox_message_id_seq TO pg_monitor";
    admin.execute(grants).await.unwrap();
    let rights = "SELECT string_agg(line, ' ' ORDER BY line) FROM ( \
        SELECT c.relname || c.relacl::text AS line FROM pg_class AS c WHERE c.relname ~ '^outbox_message(_id_seq)?$' \
        UNION ALL SELECT t.attname || t.attacl::text FROM pg_attribute AS t \
        WHERE t.attrelid = 'outbox_message'::regclass AND t.attacl IS NOT NULL) AS lines";
    let before: String = sqlx::query_scalar(rights).fetch_one(&mut admin).await.unwrap();
    migrator.up(&mut admin).await.unwrap();
    let after: String = sqlx::query_scalar(rights).fetch_one(&mut admin).await.unwrap();
    assert_eq!(after, before);
    assert!(before.contains("pg_monitor=r") && before.contains("payload{=a"), "{before}");
    admin.close().await.unwrap();
    let (server, name) = url.rsplit_once('/').unwrap();
    let mut admin = PgConnection::connect(&format!("{server}/postgres")).await.unwrap();
    admin.execute(sqlx::AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).await.unwrap();
}

async fn a_sequence_that_reserves_ids_is_refused() {
    on("a_sequence_that_reserves_ids", |db: Database<Postgres>| async move {
        db.run("ALTER SEQUENCE outbox_message_id_seq CACHE 10").await;
        let error = db.log.reader(&relay()).await.map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("CACHE 10"), "{error}");
        db
    })
    .await;
}

/// Goal: limits of a role that are meant for its services end no migration, which takes as long as
/// the log is large. Oracle: a migration that waits for another one longer than the role's limits
/// allow is applied.
async fn a_role_that_limits_its_statements_migrates() {
    let Some(url) = postgres_database().await else {
        return eprintln!("PostgreSQL: not run, OUTBOX_POSTGRES_URL is not set");
    };
    let mut other = PgConnection::connect(&url).await.unwrap();
    let knows = "SELECT count(*) FROM pg_settings WHERE name = 'transaction_timeout'";
    let known: i64 = sqlx::query_scalar(knows).fetch_one(&mut other).await.unwrap();
    let mut limits = vec!["statement_timeout", "idle_in_transaction_session_timeout"];
    limits.extend((known > 0).then_some("transaction_timeout"));

    other.execute("BEGIN; SELECT pg_advisory_xact_lock(8031170788430771316)").await.unwrap();
    let mut limited = PgConnection::connect(&url).await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut limited).await.unwrap();
    for limit in limits {
        let set = format!("SET {limit} = '500ms'");
        limited.execute(sqlx::AssertSqlSafe(set)).await.unwrap();
    }
    let up = tokio::spawn(async move {
        let applied = Migrator::<Postgres>::new(Line::Outbox).up(&mut limited).await;
        applied.map(|applied| applied.len())
    });
    let waits = "SELECT coalesce(bool_or(wait_event_type = 'Lock' AND clock_timestamp() - query_start > '1 s'), false)
        FROM pg_stat_activity WHERE pid = $1";
    while !up.is_finished() {
        let has_waited: bool = sqlx::query_scalar(waits).bind(pid).fetch_one(&mut other).await.unwrap();
        if has_waited {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    other.execute("COMMIT").await.unwrap();
    assert_eq!(up.await.unwrap().unwrap(), all(migrations::Dialect::Postgres));
    on("drop", |db: Database<Postgres>| async move {
        let (_, name) = url.rsplit_once('/').unwrap();
        db.run(&format!("DROP DATABASE {name} WITH (FORCE)")).await;
        db
    })
    .await;
}
