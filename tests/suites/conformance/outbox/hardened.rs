//! Roles in a database whose default privileges let `PUBLIC` execute no function, or give a service
//! rights on every table.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use migrations::{Identifier, Line, Migrator, Roles};
use sqlx::{Connection, Postgres};
use tests::Role;
use tests::roles::grant;

use crate::outbox::roles::{DENIED, as_role, refusal};
use crate::outbox::support::Database;

tests::cases! { "roles/hardened/{on}/{case}":
    on_postgres {
        producers_enqueue_where_public_may_execute_nothing,
        no_right_on_a_segment_or_a_day_is_left_to_a_service,
    }
}

/// Goal: producers can call the functions of the outbox where the database's default privileges let
/// PUBLIC execute none.
async fn producers_enqueue_where_public_may_execute_nothing(db: &Database<Postgres>) {
    db.run("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC; CREATE SCHEMA hardened").await;
    let schema = Identifier::new("hardened").unwrap();
    let line = Migrator::<Postgres>::new(Line::Outbox).schema(Some(schema.clone()));
    line.up(&mut db.admin.acquire().await.unwrap()).await.unwrap();
    let calls = [
        "SELECT hardened.outbox_enqueue('orders', '')",
        "SELECT hardened.outbox_enqueue_json('orders', '{}')",
        "INSERT INTO hardened.outbox_message (topic, payload) VALUES ('orders', '')",
    ];
    db.run(&format!("GRANT USAGE ON SCHEMA hardened TO {}", Role::Producer.user())).await;
    let mut producer = as_role(db, Role::Producer).await;
    for sql in calls {
        assert_eq!(refusal(&mut producer, sql).await, DENIED, "{sql}");
    }
    let mut roles = Roles::standard();
    for (role, user) in [
        (&mut roles.producer, Role::Producer.user()),
        (&mut roles.relay, Role::Relay.user()),
        (&mut roles.observer, Role::Observer.user()),
        (&mut roles.migrator, "outbox_test_migrator"),
    ] {
        *role = Identifier::new(user).unwrap();
    }
    db.run(roles.script(Line::Outbox, Some(&schema)).as_str()).await;
    for sql in calls {
        assert_eq!(refusal(&mut producer, sql).await, "", "{sql}");
    }
    producer.close().await.unwrap();
}

/// Goal: the roles have no right on a segment of the outbox or a day of the inbox, even where the
/// database's default privileges give them every right on tables. Oracle: the server's refusals, on
/// days from before the script and after it.
async fn no_right_on_a_segment_or_a_day_is_left_to_a_service(db: &Database<Postgres>) {
    let (producer, consumer) = (Role::Producer.user(), Role::Consumer.user());
    let defaults = format!("ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {producer}, {consumer}, PUBLIC");
    db.run(&defaults).await;
    let mut admin = db.admin.acquire().await.unwrap();
    Migrator::<Postgres>::new(Line::Inbox).up(&mut admin).await.unwrap();
    for segment in 0..8 {
        let given = format!("GRANT ALL ON outbox_message_{segment} TO {producer}, PUBLIC");
        db.run(&given).await;
    }
    db.run("SELECT inbox_create_days(current_date, current_date)").await;
    grant(&mut admin, &[Line::Outbox, Line::Inbox], None).await.unwrap();
    db.run("SELECT inbox_create_days(current_date + 1, current_date + 1)").await;
    let days = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'inbox_message'::regclass";
    let days: Vec<String> = sqlx::query_scalar(days).fetch_all(&db.admin).await.unwrap();
    assert_eq!(days.len(), 2, "{days:?}");
    let segments = (0..8).map(|number| format!("outbox_message_{number}"));
    let parts =
        segments.map(|part| (Role::Producer, part)).chain(days.into_iter().map(|day| (Role::Consumer, day)));
    for (role, part) in parts {
        let mut service = as_role(db, role).await;
        for sql in [format!("DELETE FROM {part}"), format!("TRUNCATE {part}")] {
            assert_eq!(refusal(&mut service, &sql).await, DENIED, "{sql}");
        }
        service.close().await.unwrap();
    }
    drop(admin);
}
