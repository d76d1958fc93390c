//! Rights that a role lacks, and missing parts of tables: both hide rows.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use migrations::{Identifier, Line, MigrateError, Migrator};
use outbox::NewMessage;
use outbox_log::LogError;
use sqlx::{Connection as _, PgConnection, Postgres};
use tests::Role;

use crate::outbox::roles::{as_role, with_every_line};
use crate::outbox::support::{Database, TTL, granted, relay};

tests::cases! { "outbox/withheld/{on}/{case}":
    on_postgres {
        a_schema_that_a_role_may_not_use_is_not_an_empty_one,
        a_role_that_may_not_create_tables_learns_what_helps,
        a_sequence_that_a_role_may_not_read_is_not_one_that_was_set_back,
        a_dropped_key_and_a_detached_day_are_named,
        an_unlogged_segment_keeps_nobody_from_opening,
    }
}

async fn a_schema_that_a_role_may_not_use_is_not_an_empty_one(db: &Database<Postgres>) {
    db.run("REVOKE ALL ON SCHEMA public FROM PUBLIC, outbox_test_relay").await;
    let LogError::Operator { reason, .. } = db.log.reader(&relay()).await.map(drop).unwrap_err() else {
        panic!("another error")
    };
    assert!(reason.contains("GRANT USAGE ON SCHEMA public TO outbox_test_relay"), "{reason}");
    let mut session = as_role(db, Role::Relay).await;
    let public = Some(Identifier::new("public").unwrap());
    let told = Migrator::<Postgres>::new(Line::Outbox).schema(public).check(&mut session).await.unwrap_err();
    assert!(told.to_string().contains("GRANT USAGE ON SCHEMA public"), "{told}");
    session.close().await.unwrap();
    db.run("GRANT USAGE ON SCHEMA public TO outbox_test_relay").await;
    db.reader().await;
}

async fn a_role_that_may_not_create_tables_learns_what_helps(db: &Database<Postgres>) {
    db.run("CREATE SCHEMA op; GRANT USAGE ON SCHEMA op TO outbox_test_relay").await;
    let mut session = as_role(db, Role::Relay).await;
    let op = Some(Identifier::new("op").unwrap());
    let told = Migrator::<Postgres>::new(Line::Outbox).schema(op).up(&mut session).await.unwrap_err();
    assert!(matches!(told, MigrateError::MayNotCreate { .. }), "{told}");
    for part in ["permission denied for schema op", "GRANT CREATE ON SCHEMA", "--schema"] {
        assert!(told.to_string().contains(part), "{told}");
    }
    session.close().await.unwrap();
}

/// Goal: a relay that may not read the sequence of ids is refused. Since PostgreSQL 17, a function
/// answers null in this case, as for a sequence from which no id was taken. Oracle: the error, and
/// the next grant.
async fn a_sequence_that_a_role_may_not_read_is_not_one_that_was_set_back(db: &Database<Postgres>) {
    db.enqueue([NewMessage::new("orders").json(&1)]).await;
    let mut checkpoint_store = db.checkpoint_store("a").await;
    let (before, _) = granted(&mut checkpoint_store).await;
    db.run("REVOKE ALL ON SEQUENCE outbox_message_id_seq FROM outbox_test_relay").await;
    let LogError::Operator { reason, .. } = checkpoint_store.acquire(TTL).await.map(drop).unwrap_err() else {
        panic!("another error")
    };
    assert!(reason.contains("outbox_message_id_seq"), "{reason}");
    db.run("GRANT SELECT ON SEQUENCE outbox_message_id_seq TO outbox_test_relay").await;
    let (after, _) = granted(&mut db.checkpoint_store("a").await).await;
    assert!(after.epoch > before.epoch);
}

async fn a_dropped_key_and_a_detached_day_are_named(db: &Database<Postgres>) {
    with_every_line(db).await;
    db.run("SELECT inbox_create_days(current_date, current_date + 1)").await;
    let mut owner = PgConnection::connect(&db.url).await.unwrap();
    for line in Line::ALL {
        assert!(Migrator::<Postgres>::new(line).missing(&mut owner).await.unwrap().is_empty(), "{line}");
    }
    db.run("ALTER TABLE outbox_message_3 DROP CONSTRAINT outbox_message_3_message_id_key").await;
    let missing = Migrator::<Postgres>::new(Line::Outbox).missing(&mut owner).await.unwrap();
    assert_eq!(missing, ["index outbox_message_3_message_id_key"]);
    let day: String = sqlx::query_scalar(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'inbox_message'::regclass LIMIT 1",
    )
    .fetch_one(&mut owner)
    .await
    .unwrap();
    db.run(&format!("ALTER TABLE inbox_message DETACH PARTITION {day}")).await;
    let missing = Migrator::<Postgres>::new(Line::Inbox).missing(&mut owner).await.unwrap();
    assert_eq!(missing, [format!("partition {day}")]);
    owner.close().await.unwrap();
}

/// It is a warning, because a database for tests may be like this on purpose.
async fn an_unlogged_segment_keeps_nobody_from_opening(db: &Database<Postgres>) {
    with_every_line(db).await;
    let mut owner = PgConnection::connect(&db.url).await.unwrap();
    for line in Line::ALL {
        let unlogged = Migrator::<Postgres>::new(line).unlogged(&mut owner).await.unwrap();
        assert_eq!(unlogged, [""; 0], "{line}");
    }
    db.run("SELECT inbox_create_days(current_date, current_date + 1)").await;
    let day: String = sqlx::query_scalar(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'inbox_message'::regclass LIMIT 1",
    )
    .fetch_one(&mut owner)
    .await
    .unwrap();
    // A service may choose such a name for its own table.
    db.run("CREATE UNLOGGED TABLE saga_scratch (id int)").await;
    db.run("ALTER TABLE outbox_message_2 SET UNLOGGED").await;
    db.run(&format!("ALTER TABLE {day} SET UNLOGGED")).await;
    for (line, tables) in [
        (Line::Outbox, vec![String::from("public.outbox_message_2")]),
        (Line::Inbox, vec![format!("public.{day}")]),
        (Line::Saga, vec![]),
    ] {
        let unlogged = Migrator::<Postgres>::new(line).unlogged(&mut owner).await.unwrap();
        assert_eq!(unlogged, tables, "{line}");
    }
    owner.close().await.unwrap();
    db.reader().await;
}
