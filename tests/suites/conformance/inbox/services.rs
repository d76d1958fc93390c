//! Services in one database, each with its own schema and roles: no service can touch another's
//! records.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::str::FromStr;

use crate::inbox::{consumer, message};
use inbox::{Cause, Inbox, InboxOptions, Reason, Tenant};
use message::{Delivery, DeliveryToken};
use migrations::{Identifier, Line, Migrator, Roles};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool, Postgres};
use tests::Backend;

tests::cases! { "inbox/services/{on}/{case}":
    postgres { services_cannot_touch_each_others_records }
}

/// A service. Its schema has its name, and its user is a member of its roles.
struct Service {
    name: Identifier,
    user: String,
    roles: [Identifier; 2],
    pool: PgPool,
}

async fn service(admin: &mut PgConnection, url: &str, name: &str, roles: &Roles) -> Service {
    let name = Identifier::new(name).unwrap();
    admin.execute(AssertSqlSafe(format!("CREATE SCHEMA {}", name.as_str()))).await.unwrap();
    let own = Roles::of_service(&name).unwrap();
    let mut all = roles.clone();
    (all.consumer, all.claimant) = (own.consumer.clone(), own.claimant.clone());
    for line in [Line::Inbox, Line::Idempotency] {
        Migrator::<Postgres>::new(line).schema(Some(name.clone())).up(admin).await.unwrap();
        let script = all.script(line, Some(&name)).to_string();
        admin.execute(AssertSqlSafe(script)).await.unwrap();
    }
    let user = format!("{}_user", name.as_str());
    let (consumer, claimant) = (own.consumer.as_str(), own.claimant.as_str());
    let login = format!("CREATE ROLE {user} LOGIN PASSWORD 'p' IN ROLE {consumer}, {claimant}");
    admin.execute(AssertSqlSafe(login)).await.unwrap();
    let options = PgConnectOptions::from_str(url).unwrap().username(&user).password("p");
    let pool = PgPool::connect_with(options).await.unwrap();
    Service { name, user, roles: [own.consumer, own.claimant], pool }
}

/// Returns all relations of a schema, including partitions.
async fn relations(admin: &mut PgConnection, schema: &Identifier) -> Vec<String> {
    let tables = "SELECT format('%I.%I', relnamespace::regnamespace, relname) FROM pg_class \
        WHERE relnamespace = $1::regnamespace AND relkind IN ('r', 'p', 'v', 'S')";
    sqlx::query_scalar(tables).bind(schema.as_str()).fetch_all(admin).await.unwrap()
}

async fn is_denied(pool: &PgPool, statement: String) -> bool {
    let mut tx = pool.begin().await.unwrap();
    let done = tx.execute(AssertSqlSafe(statement.clone())).await;
    tx.rollback().await.unwrap();
    let error = done.err().and_then(|error| error.into_database_error());
    let code = error.as_ref().and_then(|error| error.code()).map(|code| code.into_owned());
    println!("{statement}: {code:?}");
    code.as_deref() == Some("42501")
}

/// Goal: a compromised service cannot read, add, change or remove anything of another service:
/// inbox rows, attempts, chunks, dead letters, decisions, idempotency keys. Oracle: the server's
/// refusals, for everything that its catalogue lists.
async fn services_cannot_touch_each_others_records() {
    let url = Backend::Postgres.address().unwrap();
    let mut admin = PgConnection::connect(&url).await.unwrap();
    let salt = format!("svc{:08x}", rand::random::<u32>());
    let mut roles = Roles::standard();
    roles.migrator = Identifier::new(format!("{salt}_migrator")).unwrap();
    roles.observer = Identifier::new(format!("{salt}_observer")).unwrap();
    let mut services = Vec::new();
    for name in ["billing", "shipping"] {
        services.push(service(&mut admin, &url, &format!("{salt}_{name}"), &roles).await);
    }
    for Service { name, pool, .. } in &services {
        // The service can write its own records.
        let options = InboxOptions::default().schema(Some(name.clone()));
        let inbox = Inbox::<Postgres>::open(pool.clone(), options).await.unwrap();
        let (own, none) = (consumer("same-name"), Tenant::none());
        let mut tx = inbox.begin().await.unwrap();
        drop(tx.admit(&own, &none, &message("applied")).await.unwrap());
        drop(tx.commit().await.unwrap());
        let dead = message("dead");
        inbox.record_failure(&own, &none, dead.id, "it broke", None).await.unwrap();
        let delivery = Delivery {
            token: DeliveryToken(1),
            message: Ok(dead),
            redelivered: false,
            origin: String::from("orders"),
        };
        let cause = Cause::new(Reason::Poison, String::from("it broke"), 1);
        drop(inbox.dead_letter(&own, &none, &delivery, cause).await.unwrap());
    }
    for (at, Service { name, .. }) in services.iter().enumerate() {
        let other = &services[1 - at];
        let relations = relations(&mut admin, name).await;
        assert!(relations.len() > 20, "tables and partitions: {relations:?}");
        for relation in &relations {
            for statement in [
                format!("SELECT * FROM {relation}"),
                format!("INSERT INTO {relation} DEFAULT VALUES"),
                format!("DELETE FROM {relation}"),
                format!("TRUNCATE {relation}"),
            ] {
                assert!(is_denied(&other.pool, statement.clone()).await, "{statement}");
            }
            let any = "SELECT has_table_privilege($1, $2::regclass, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE') \
                OR has_any_column_privilege($1, $2::regclass, 'SELECT, INSERT, UPDATE')";
            let any: bool = if relation.contains("_seq") {
                false
            } else {
                sqlx::query_scalar(any).bind(&other.user).bind(relation).fetch_one(&mut admin).await.unwrap()
            };
            assert!(!any, "{relation} is granted to {}", other.user);
        }
        let functions = "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = $1::regnamespace \
            AND has_function_privilege($2, oid, 'EXECUTE') AND has_schema_privilege($2, pronamespace, 'USAGE')";
        let callable: Vec<String> = sqlx::query_scalar(functions)
            .bind(name.as_str())
            .bind(&other.user)
            .fetch_all(&mut admin)
            .await
            .unwrap();
        assert!(callable.is_empty(), "{callable:?}");
        // A partition does not let the service bypass the rights on its own tables either.
        let day = relations.iter().find(|relation| relation.contains("inbox_message_2")).unwrap();
        assert!(is_denied(&services[at].pool, format!("DELETE FROM {day}")).await);
    }
    for Service { name, user, roles, pool } in services {
        pool.close().await;
        let (name, [consumer, claimant]) = (name.as_str(), roles.each_ref().map(Identifier::as_str));
        let remove = format!(
            "DROP SCHEMA {name} CASCADE; DROP OWNED BY {user}, {consumer}, {claimant}; \
             DROP ROLE {user}; DROP ROLE {consumer}; DROP ROLE {claimant}"
        );
        admin.execute(AssertSqlSafe(remove)).await.unwrap();
    }
    let (migrator, observer) = (roles.migrator.as_str(), roles.observer.as_str());
    let remove = format!("DROP OWNED BY {migrator}, {observer}; DROP ROLE {migrator}; DROP ROLE {observer}");
    admin.execute(AssertSqlSafe(remove)).await.unwrap();
    admin.close().await.unwrap();
}
