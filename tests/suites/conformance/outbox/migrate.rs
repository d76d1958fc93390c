//! The tables of the outbox as the runner makes them, and the errors of relays on a schema that
//! does not fit. How a database gets later versions is in `versions`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::outbox::support::{Database, TestDialect, granted, relay, source};
use migrations::{Identifier, Line, MigrateError, Migrator, SchemaError};
use outbox::{NewMessage, Outbox};
use outbox_log::{LogError, LogOptions};
use sqlx::{Connection, Executor, PgConnection, Postgres};

tests::cases! { "migrations/runner/{on}/{case}":
    every {
        a_schema_that_does_not_fit_is_explained,
        a_changed_migration_is_named,
        a_list_of_versions_that_was_emptied_is_explained,
    }
    on_postgres {
        the_printed_script_makes_the_same_schema_by_hand_in_a_schema_of_its_own,
        a_sequence_that_reserves_ids_is_refused,
        a_schema_that_would_hide_the_tables_is_refused,
    }
}

async fn a_schema_that_does_not_fit_is_explained<DB: TestDialect>(db: &Database<DB>) {
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
    assert!(reason.contains("was it truncated?"), "{reason}");
    db.run("DROP TABLE outbox_toolkit_migration").await;
    let reason = explained().await;
    assert!(
        reason.contains("missing") && reason.contains("run `relay migrate up --line outbox`"),
        "{reason}"
    );
}

/// Goal: a tool that emptied all tables leaves a database that its owner can repair. Oracle: a
/// relay and a migrator name the same statement, and work after it.
async fn a_list_of_versions_that_was_emptied_is_explained<DB: TestDialect>(db: &Database<DB>) {
    db.run("DELETE FROM outbox_toolkit_migration").await;
    let refused = db.log.reader(&relay()).await.map(drop).unwrap_err();
    let mut connection = db.admin.acquire().await.unwrap();
    let migrator = Migrator::<DB>::new(Line::Outbox);
    let error = migrator.up(&mut connection).await.unwrap_err();
    assert!(refused.to_string().contains(&error.to_string()), "{refused}\n{error}");
    let MigrateError::Schema(SchemaError::Unrecorded { statement, .. }) = error else { panic!("{error}") };
    db.run(&statement).await;
    migrator.check(&mut connection).await.unwrap();
    assert!(migrator.up(&mut connection).await.unwrap().is_empty());
    db.log.reader(&relay()).await.map(drop).unwrap();
    drop(connection);
}

async fn a_changed_migration_is_named<DB: TestDialect>(db: &Database<DB>) {
    db.run("UPDATE outbox_toolkit_migration SET checksum = 'edited'").await;
    let mut connection = db.admin.acquire().await.unwrap();
    let error = Migrator::<DB>::new(Line::Outbox).up(&mut connection).await.unwrap_err();
    let MigrateError::Schema(SchemaError::Changed { version, name, .. }) = error else { panic!("{error}") };
    assert_eq!((version, name.as_str()), (1, "0001_outbox"));
    drop(connection);
}

async fn the_printed_script_makes_the_same_schema_by_hand_in_a_schema_of_its_own(db: &Database<Postgres>) {
    let mut connection = PgConnection::connect(&db.url).await.unwrap();
    let by_migrator = Migrator::<Postgres>::new(Line::Outbox).snapshot(&mut connection).await.unwrap();
    let schema = Identifier::new("order").unwrap();
    let migrator = Migrator::<Postgres>::new(Line::Outbox).schema(Some(schema.clone()));
    let error = migrator.up(&mut connection).await.unwrap_err();
    assert!(matches!(error, MigrateError::NoSuchSchema { .. }), "{error}");

    connection.execute("CREATE SCHEMA \"order\"").await.unwrap();
    let script = migrator.sql(1..=1).unwrap();
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
}

async fn a_sequence_that_reserves_ids_is_refused(db: &Database<Postgres>) {
    db.run("ALTER SEQUENCE outbox_message_id_seq CACHE 10").await;
    let error = db.log.reader(&relay()).await.map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("CACHE 10"), "{error}");
}

/// The search path of a role begins with a schema of its name as soon as that exists.
async fn a_schema_that_would_hide_the_tables_is_refused(db: &Database<Postgres>) {
    let mut connection = PgConnection::connect(&db.url).await.unwrap();
    for statement in ["CREATE SCHEMA later", "SET search_path = later, public"] {
        connection.execute(statement).await.unwrap();
    }
    // Nothing is pending, so nothing would be created.
    assert!(Migrator::<Postgres>::new(Line::Outbox).up(&mut connection).await.unwrap().is_empty());
    let error = Migrator::<Postgres>::new(Line::Saga).up(&mut connection).await.unwrap_err();
    let MigrateError::Hidden { found, first } = &error else { panic!("{error}") };
    assert_eq!((found.as_str(), first.as_str()), ("public", "later"));
    let script = Migrator::<Postgres>::new(Line::Saga).sql(1..=1).unwrap();
    let error = sqlx::raw_sql(sqlx::AssertSqlSafe(script)).execute(&mut connection).await.unwrap_err();
    assert!(error.to_string().contains("a later schema of the search_path"), "{error}");
    connection.execute("ROLLBACK").await.unwrap();
    let schema = Some(Identifier::new("later").unwrap());
    let there = Migrator::<Postgres>::new(Line::Saga).schema(schema).up(&mut connection).await.unwrap();
    assert_eq!(there.len(), 1);
    connection.close().await.unwrap();
}
