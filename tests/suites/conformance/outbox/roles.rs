//! Rights that each role lacks. All other suites run under these roles, so they show that the
//! rights suffice.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use migrations::{Identifier, Line, Migrator, Roles, Template};
use outbox::NewMessage;
use outbox_log::{Fenced, LogOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Postgres};
use tests::Role;
use tests::roles::grant;

use crate::outbox::support::{Database, granted, relay, source};

tests::cases! { "roles/{on}/{case}":
    on_postgres {
        every_role_is_refused_what_it_does_not_need,
        a_fingerprint_made_by_the_database_is_the_toolkits_own,
        functions_with_the_owners_rights_do_one_thing_only,
        nobody_puts_other_tables_before_the_functions,
        the_script_takes_away_what_it_does_not_grant,
        services_with_a_schema_each_cannot_touch_each_others_keys,
        an_observer_sees_states_and_no_content,
        hostile_names_are_refused_before_anything_runs,
    }
}

/// The SQLSTATE of a missing privilege.
pub(super) const DENIED: &str = "42501";

const PRODUCER: [&str; 27] = [
    "SELECT payload FROM outbox_message",
    "SELECT headers FROM outbox_message",
    "SELECT topic, key FROM outbox_message",
    "SELECT * FROM outbox_message",
    "UPDATE outbox_message SET topic = 'x'",
    "DELETE FROM outbox_message",
    "TRUNCATE outbox_message",
    "INSERT INTO outbox_message (topic, payload, xid) VALUES ('x', '', '3')",
    "INSERT INTO outbox_message (topic, payload, enqueued_at) VALUES ('x', '', now())",
    "SELECT setval('outbox_message_id_seq', 1)",
    "SELECT * FROM outbox_relay",
    "UPDATE outbox_relay SET epoch = 99",
    "INSERT INTO outbox_exception (relay, id, message_id, topic, state) VALUES ('r', 1, gen_random_uuid(), 't', 'dead')",
    "SELECT * FROM outbox_audit",
    "SELECT outbox_rebase_rows()",
    "SELECT outbox_advance_sequence()",
    "SELECT outbox_renumber_rows('1:1:', 0)",
    "DELETE FROM outbox_server_run",
    "SELECT outbox_expire_segment(0, '0')",
    "SELECT outbox_forget_relay('main', true)",
    "SELECT outbox_forget_decisions('400 days', 1000)",
    "SELECT * FROM outbox_node",
    "UPDATE outbox_node SET epoch = 1",
    "DELETE FROM outbox_node",
    "SELECT * FROM outbox_message_0",
    "UPDATE outbox_toolkit_migration SET version = 9",
    "SELECT * FROM inbox_message",
];
const RELAY: [&str; 18] = [
    "INSERT INTO outbox_message (topic, payload) VALUES ('x', '')",
    "UPDATE outbox_message SET xid = '3'",
    "UPDATE outbox_message SET payload = ''",
    "DELETE FROM outbox_message",
    "TRUNCATE outbox_message",
    "TRUNCATE outbox_message_0",
    "SELECT * FROM outbox_message_0",
    "UPDATE outbox_retention SET expired_through = NULL",
    "DELETE FROM outbox_relay",
    "UPDATE outbox_identity SET system_identifier = 'x'",
    "TRUNCATE outbox_server_run",
    "UPDATE outbox_audit SET note = 'x'",
    "DELETE FROM outbox_audit",
    "DELETE FROM outbox_toolkit_migration",
    "SELECT setval('outbox_message_id_seq', 1)",
    "UPDATE business SET n = 2",
    "SELECT outbox_take_node('r', '30 s')",
    "SELECT * FROM inbox_message",
];
const CONSUMER: [&str; 19] = [
    "DELETE FROM inbox_message",
    "TRUNCATE inbox_message",
    "UPDATE inbox_message SET processed_at = now()",
    "DELETE FROM inbox_day",
    "INSERT INTO inbox_day VALUES (current_date)",
    "UPDATE inbox_retention SET retained_from = now()",
    "DELETE FROM inbox_retention",
    "UPDATE inbox_dead_letter SET payload = ''",
    "UPDATE inbox_chunk SET payload = ''",
    "UPDATE inbox_chunk_set SET begun_at = now()",
    "TRUNCATE inbox_chunk",
    "UPDATE inbox_minute SET minute = now()",
    "CREATE TABLE more (n integer)",
    "SELECT * FROM outbox_message",
    "INSERT INTO outbox_message (topic, payload) VALUES ('x', '')",
    "SELECT * FROM outbox_relay",
    "SELECT * FROM outbox_exception",
    "SELECT outbox_rebase_rows()",
    "SELECT outbox_stored('{}')",
];
const SERVICE: [&str; 21] = [
    "UPDATE saga SET input = ''",
    "UPDATE saga SET version = 2",
    "UPDATE saga_step SET kind = 'call'",
    "UPDATE saga_step SET position = 9",
    "UPDATE saga_reply SET payload = ''",
    "INSERT INTO saga_audit (actor, note, action, type, id) VALUES ('me', '', 'retry', 'a', 'b')",
    "TRUNCATE saga",
    "INSERT INTO idempotency_key SELECT * FROM idempotency_key",
    "INSERT INTO idempotency_key (decided_by) VALUES ('me')",
    "UPDATE idempotency_key SET decided_by = 'me'",
    "UPDATE idempotency_key SET scope = 'other'",
    "UPDATE idempotency_key SET operation = 'other'",
    "UPDATE idempotency_key SET key = 'other'",
    "TRUNCATE idempotency_key",
    "ALTER TABLE idempotency_key DISABLE TRIGGER ALL",
    "DROP TRIGGER idempotency_key_keep_outcome ON idempotency_key",
    "CREATE TABLE more (n integer)",
    "SELECT payload FROM outbox_message",
    "SELECT * FROM outbox_relay",
    "SELECT * FROM inbox_message",
    "SELECT outbox_rebase_rows()",
];
const OBSERVER: [&str; 25] = [
    "SELECT input FROM saga",
    "SELECT result FROM saga_step",
    "SELECT payload FROM saga_reply",
    "DELETE FROM saga",
    "SELECT payload FROM outbox_message",
    "SELECT headers FROM outbox_message",
    "SELECT payload FROM outbox_parked",
    "SELECT payload_before FROM outbox_audit",
    "SELECT headers_after FROM outbox_audit",
    "SELECT result FROM inbox_message",
    "SELECT payload FROM inbox_dead_letter",
    "SELECT headers FROM inbox_dead_letter",
    "SELECT payload FROM inbox_chunk",
    "DELETE FROM inbox_chunk_set",
    "INSERT INTO outbox_message (topic, payload) VALUES ('x', '')",
    "UPDATE outbox_relay SET epoch = 99",
    "DELETE FROM outbox_exception",
    "SELECT outbox_expire_segment(0, '0')",
    "SELECT outbox_forget_relay('main', true)",
    "SELECT outbox_release_node(0, 1, 'process 7')",
    "INSERT INTO inbox_attempt (consumer, scope, message_id, attempts, last_error, next_at) VALUES ('c', '', gen_random_uuid(), 1, '', now())",
    "SELECT inbox_create_days(current_date, current_date)",
    "SELECT inbox_expire_days('2000-01-01')",
    "SELECT outcome FROM idempotency_key",
    "DELETE FROM idempotency_key",
];

pub(super) async fn as_role(db: &Database<Postgres>, role: Role) -> PgConnection {
    PgConnection::connect(&role.url(&db.url).unwrap()).await.unwrap()
}

/// Returns the SQLSTATE of a refusal, or an empty string if the statement succeeded.
pub(super) async fn refusal(connection: &mut PgConnection, sql: &str) -> String {
    match sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await {
        Ok(_) => String::new(),
        Err(error) => {
            error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned()
        }
    }
}

pub(super) async fn with_every_line(db: &Database<Postgres>) {
    let mut admin = db.admin.acquire().await.unwrap();
    let own = format!("ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM {}", Role::Producer.user());
    admin.execute(AssertSqlSafe(own)).await.unwrap();
    for line in [Line::Inbox, Line::Idempotency, Line::Saga] {
        Migrator::<Postgres>::new(line).up(&mut admin).await.unwrap();
    }
    grant(&mut admin, &Line::ALL, None).await.unwrap();
    admin.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC").await.unwrap();
}

async fn every_role_is_refused_what_it_does_not_need(db: &Database<Postgres>) {
    with_every_line(db).await;
    db.run("CREATE TABLE business (n integer)").await;
    db.enqueue([NewMessage::new("orders").payload("private")]).await;
    for (role, forbidden) in [
        (Role::Producer, &PRODUCER[..]),
        (Role::Relay, &RELAY),
        (Role::Consumer, &CONSUMER),
        (Role::Service, &SERVICE),
        (Role::Observer, &OBSERVER),
    ] {
        let mut connection = as_role(db, role).await;
        for sql in forbidden {
            assert_eq!(refusal(&mut connection, sql).await, DENIED, "{role:?}: {sql}");
        }
        connection.close().await.unwrap();
    }
    assert_eq!(db.rows().await, 1);
}

/// A second enqueue of an id is recognised by its fingerprint, whatever the type, content type and
/// payload.
async fn a_fingerprint_made_by_the_database_is_the_toolkits_own(db: &Database<Postgres>) {
    db.produce("INSERT INTO outbox_message (topic, payload) VALUES ('orders', '\\x00ff')").await;
    db.produce(
        "INSERT INTO outbox_message (topic, kind, content_type, payload) VALUES ('t', 'ä.ö', 'a/b', '')",
    )
    .await;
    let expected = [
        message::Fingerprint::of_parts("orders", "application/json", &[0, 255]),
        message::Fingerprint::of_parts("ä.ö", "a/b", b""),
    ];
    let found: Vec<[u8; 32]> = sqlx::query_scalar(
        "SELECT s.fingerprint FROM outbox_message AS m, outbox_stored(ARRAY[m.message_id]) AS s ORDER BY m.id",
    )
    .fetch_all(&db.admin)
    .await
    .unwrap();
    assert_eq!(found, expected.map(|fingerprint| *fingerprint.as_bytes()));
}

async fn functions_with_the_owners_rights_do_one_thing_only(db: &Database<Postgres>) {
    with_every_line(db).await;
    let mut relay = as_role(db, Role::Relay).await;
    // This cluster must not rewrite the rows, because nothing was restored.
    assert_eq!(refusal(&mut relay, "SELECT outbox_rebase_rows()").await, "55000");
    // Each row has its own id.
    db.enqueue([NewMessage::new("orders"), NewMessage::new("orders")]).await;
    let renumber = "SELECT outbox_renumber_rows('1:1:', 0)";
    let renumbered: i64 = sqlx::query_scalar(renumber).fetch_one(&mut relay).await.unwrap();
    assert_eq!((renumbered, db.number("SELECT max(id) FROM outbox_message").await), (0, 2));
    let mut consumer = as_role(db, Role::Consumer).await;
    for (call, code) in [
        ("inbox_expire_days(current_date + 2)", "22023"),
        ("inbox_create_days(current_date, current_date + 1000)", "22023"),
        ("inbox_create_days('0001-01-01', current_date)", "22023"),
        ("inbox_create_days(current_date, current_date)", ""),
    ] {
        assert_eq!(refusal(&mut consumer, &format!("SELECT {call}")).await, code, "{call}");
    }
    assert_eq!(
        db.number("SELECT count(*) FROM pg_inherits WHERE inhparent = 'inbox_message'::regclass").await,
        1
    );
    relay.close().await.unwrap();
    consumer.close().await.unwrap();
}

/// A consumer's own `search_path` and temporary tables do not affect a function that runs with more
/// rights.
async fn nobody_puts_other_tables_before_the_functions(db: &Database<Postgres>) {
    with_every_line(db).await;
    let mut consumer = as_role(db, Role::Consumer).await;
    for sql in [
        "CREATE TEMP TABLE inbox_retention (retained_from timestamptz)",
        "INSERT INTO inbox_retention VALUES (now() + interval '1 year')",
        "CREATE TEMP TABLE inbox_message (message_id uuid)",
        "SET search_path = pg_temp, public",
        "SELECT public.inbox_create_days(current_date, current_date)",
    ] {
        assert_eq!(refusal(&mut consumer, sql).await, "", "{sql}");
    }
    let real = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'public.inbox_message'::regclass";
    assert_eq!(db.number(real).await, 1);
    consumer.close().await.unwrap();
}

async fn the_script_takes_away_what_it_does_not_grant(db: &Database<Postgres>) {
    let user = Role::Producer.user();
    db.run(&format!("GRANT ALL ON outbox_message TO {user}; GRANT SELECT ON outbox_message TO PUBLIC")).await;
    let mut producer = as_role(db, Role::Producer).await;
    assert_eq!(refusal(&mut producer, "DELETE FROM outbox_message").await, "");
    grant(&mut db.admin.acquire().await.unwrap(), &[Line::Outbox], None).await.unwrap();
    for sql in ["DELETE FROM outbox_message", "SELECT payload FROM outbox_message"] {
        assert_eq!(refusal(&mut producer, sql).await, DENIED, "{sql}");
    }
    producer.close().await.unwrap();
}

/// Two services share a database; each has its own schema and role.
async fn services_with_a_schema_each_cannot_touch_each_others_keys(db: &Database<Postgres>) {
    let services = [("shop_a", Role::Service), ("shop_b", Role::Consumer)];
    for (schema, role) in services {
        db.run(&format!("CREATE SCHEMA {schema}")).await;
        let schema = Identifier::new(schema).unwrap();
        let line = Migrator::<Postgres>::new(Line::Idempotency).schema(Some(schema.clone()));
        line.up(&mut db.admin.acquire().await.unwrap()).await.unwrap();
        let mut roles = Roles::standard();
        roles.claimant = Identifier::new(role.user()).unwrap();
        roles.observer = Identifier::new(Role::Observer.user()).unwrap();
        roles.migrator = Identifier::new("outbox_test_migrator").unwrap();
        db.run(roles.script(Line::Idempotency, Some(&schema)).as_str()).await;
    }
    for ((own, role), (other, _)) in services.into_iter().zip(services.into_iter().rev()) {
        let mut service = as_role(db, role).await;
        for sql in [
            "SELECT key FROM $.idempotency_key",
            "INSERT INTO $.idempotency_key (scope, operation, key, fingerprint, state, attempt, holder, claimed_at, expires_at) \
             VALUES ('s', 'o', 'k', sha256('x'), 'released', 1, gen_random_uuid(), now(), now())",
            "UPDATE $.idempotency_key SET state = 'released'",
            "DELETE FROM $.idempotency_key",
        ] {
            assert_eq!(refusal(&mut service, &sql.replace('$', own)).await, "", "{role:?}: {sql}");
            assert_eq!(refusal(&mut service, &sql.replace('$', other)).await, DENIED, "{role:?}: {sql}");
        }
        service.close().await.unwrap();
    }
}

async fn an_observer_sees_states_and_no_content(db: &Database<Postgres>) {
    db.enqueue([NewMessage::new("orders")]).await;
    let mut checkpoint_store = db.checkpoint_store("a").await;
    let (lease, _) = granted(&mut checkpoint_store).await;
    let url = Role::Observer.url(&db.url).unwrap();
    let admin = outbox_log::admin::open(url.as_str(), source(), LogOptions::default()).unwrap();
    let relays = admin.relays().await.unwrap();
    assert_eq!((relays.len(), relays[0].backlog.entries_max), (1, 1));
    // The lease is free.
    assert_eq!(checkpoint_store.release(lease.epoch).await.unwrap(), Fenced::Held);
    let log = outbox_log::open(url.as_str(), source(), LogOptions::default()).unwrap();
    let taken = log.checkpoint_store(&relay(), "observer").await.unwrap().acquire(super::support::TTL).await;
    assert!(taken.is_err(), "an observer leads nothing");
}

/// Names from configuration that contain SQL. Oracle: the type refuses them, and an accepted name
/// is always one quoted identifier.
async fn hostile_names_are_refused_before_anything_runs(db: &Database<Postgres>) {
    for name in tests::hostile::NAMES {
        let refused = Identifier::new(name);
        assert!(refused.is_err(), "{name:?}");
        let told = refused.unwrap_err().to_string();
        assert!(told.contains("1 to 63 characters"), "{told}");
    }
    // Accepted names, even the longest or a reserved word, mean one schema each.
    for name in ["select".to_owned(), "x".repeat(63)] {
        let name = Identifier::new(name).unwrap();
        let create = Template::new("CREATE SCHEMA {name}").identifier("name", &name).render();
        let mut connection = db.admin.acquire().await.unwrap();
        connection.execute(&create).await.unwrap();
        Migrator::<Postgres>::new(Line::Outbox).schema(Some(name.clone())).up(&mut connection).await.unwrap();
        grant(&mut connection, &[Line::Outbox], Some(&name)).await.unwrap();
    }
    assert_eq!(db.rows().await, 0);
}
