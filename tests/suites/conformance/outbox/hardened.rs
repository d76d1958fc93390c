//! Producers in a database whose default privileges let `PUBLIC` execute no function.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use migrations::{Identifier, Line, Migrator, Roles};
use sqlx::{Connection, Postgres};
use tests::Role;

use crate::outbox::roles::{DENIED, as_role, refusal};
use crate::outbox::support::{Database, on};

cases! { "roles/hardened":
    postgres {
        producers_enqueue_where_public_may_execute_nothing,
    }
}

/// Goal: producers can call the functions of the outbox where the database's default privileges let
/// PUBLIC execute none.
async fn producers_enqueue_where_public_may_execute_nothing() {
    on("producers_enqueue_where_public", |db: Database<Postgres>| async move {
        db.run("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC; CREATE SCHEMA hardened")
            .await;
        let schema = Identifier::new("hardened").unwrap();
        let line = Migrator::<Postgres>::new(Line::Outbox).schema(Some(schema.clone()));
        line.up(&mut db.admin.acquire().await.unwrap()).await.unwrap();
        let calls = [
            "SELECT hardened.outbox_enqueue('orders', '')",
            "SELECT hardened.outbox_enqueue_json('orders', '{}')",
            "INSERT INTO hardened.outbox_message (topic, payload) VALUES ('orders', '')",
        ];
        db.run(&format!("GRANT USAGE ON SCHEMA hardened TO {}", Role::Producer.user())).await;
        let mut producer = as_role(&db, Role::Producer).await;
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
        db
    })
    .await;
}
