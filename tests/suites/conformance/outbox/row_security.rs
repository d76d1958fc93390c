//! Tables that were changed by hand, so that messages would be lost without an error: policies that
//! hide rows, and functions that use the tables of another schema.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use inbox::{Inbox, InboxOptions};
use migrations::{Identifier, Line, MigrateError, Migrator, SchemaError};
use outbox::NewMessage;
use outbox_log::{Fenced, LogError, LogOptions, RelayName};
use sqlx::{Connection as _, Executor as _, PgConnection, Postgres};
use tests::Role;

use crate::outbox::roles::{as_role, with_every_line};
use crate::outbox::support::{Database, Follower, TestDialect, granted, relay, source};

tests::cases! { "outbox/row_security/{on}/{case}":
    every { a_new_relay_knows_those_that_nobody_runs }
    on_postgres {
        a_relay_refuses_rows_that_a_policy_hides,
        a_policy_that_comes_later_is_an_error_and_passes_nothing,
        services_are_refused_what_a_policy_hides_and_keep_their_own_policies,
        a_renamed_schema_is_refused_until_its_functions_name_it,
        tables_without_a_schema_follow_their_renamed_one,
        a_renamed_schema_may_have_any_name_and_keeps_the_others_of_a_search_path,
        a_detached_segment_and_a_dropped_index_are_named,
    }
}

const POLICY: &str = "CREATE POLICY mine ON outbox_message FOR SELECT TO outbox_test_relay USING";

async fn refusal(db: &Database<Postgres>) -> String {
    match db.log.reader(&relay()).await.map(drop).unwrap_err() {
        LogError::Operator { reason, .. } => reason,
        other => panic!("{other}"),
    }
}

async fn a_relay_refuses_rows_that_a_policy_hides(db: &Database<Postgres>) {
    db.run("ALTER TABLE outbox_message ENABLE ROW LEVEL SECURITY").await;
    for policy in ["(false)", "(topic = 'orders')", "(true)"] {
        db.run(&format!("{POLICY} {policy}")).await;
        let reason = refusal(db).await;
        for part in ["public.outbox_message", "DISABLE ROW LEVEL SECURITY", "BYPASSRLS"] {
            assert!(reason.contains(part), "{policy}: {reason}");
        }
        db.run("DROP POLICY mine ON outbox_message").await;
    }
    db.run("ALTER TABLE outbox_message DISABLE ROW LEVEL SECURITY").await;
    db.run("ALTER TABLE outbox_relay ENABLE ROW LEVEL SECURITY").await;
    assert!(refusal(db).await.contains("public.outbox_relay"));
    db.run("ALTER TABLE outbox_relay DISABLE ROW LEVEL SECURITY").await;
    db.reader().await;
}

/// Oracle: no difference is read while the policy hides a row; both rows are read afterwards.
async fn a_policy_that_comes_later_is_an_error_and_passes_nothing(db: &Database<Postgres>) {
    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    let mut reader = db.reader().await;
    db.run("ALTER TABLE outbox_message ENABLE ROW LEVEL SECURITY").await;
    db.run(&format!("{POLICY} (topic = 'shown')")).await;
    db.run("INSERT INTO outbox_message (topic, payload) VALUES ('hidden', ''), ('shown', '')").await;
    let refused = reader.next_difference(&cursor.base).await.unwrap_err();
    assert!(refused.to_string().contains("row-level security"), "{refused}");
    db.run("ALTER TABLE outbox_message DISABLE ROW LEVEL SECURITY").await;
    assert_eq!(Follower::new(db.reader().await, cursor).all().await.len(), 2);
}

/// A handler runs on the session of its inbox, so that session keeps `row_security`.
async fn services_are_refused_what_a_policy_hides_and_keep_their_own_policies(db: &Database<Postgres>) {
    with_every_line(db).await;
    let url = Role::Consumer.url(&db.url).unwrap();
    let pool = outbox::pool::<Postgres>(&url).await.unwrap();
    let open = async || Inbox::open(pool.clone(), InboxOptions::default()).await;
    open().await.unwrap();
    let set: String =
        sqlx::query_scalar("SELECT current_setting('row_security')").fetch_one(&pool).await.unwrap();
    assert_eq!(set, "on");
    db.run("ALTER TABLE inbox_dead_letter ENABLE ROW LEVEL SECURITY").await;
    let told = message::error_text::chain(&open().await.map(drop).unwrap_err());
    assert!(
        told.contains("public.inbox_dead_letter") && told.contains("DISABLE ROW LEVEL SECURITY"),
        "{told}"
    );
    let mut service = as_role(db, Role::Service).await;
    for (line, table) in [(Line::Idempotency, "idempotency_key"), (Line::Saga, "saga_step")] {
        let migrator = Migrator::<Postgres>::new(line);
        migrator.check(&mut service).await.unwrap();
        db.run(&format!("ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")).await;
        let told = migrator.check(&mut service).await.unwrap_err().to_string();
        assert!(told.contains(&format!("public.{table}")), "{told}");
    }
    service.close().await.unwrap();
    // The owner is exempt.
    let mut owner = PgConnection::connect(&db.url).await.unwrap();
    let saga = Migrator::<Postgres>::new(Line::Saga);
    saga.check(&mut owner).await.unwrap();
    assert_eq!(saga.with_row_security(&mut owner).await.unwrap(), ["public.saga_step"]);
    owner.close().await.unwrap();
    pool.close().await;
}

/// Oracle: with a new schema of the former name, messages go to the outbox whose function is
/// called.
async fn a_renamed_schema_is_refused_until_its_functions_name_it(db: &Database<Postgres>) {
    let mut admin = PgConnection::connect(&db.url).await.unwrap();
    let of = |name: &str, line| Migrator::<Postgres>::new(line).schema(Some(Identifier::new(name).unwrap()));
    admin.execute("CREATE SCHEMA shop").await.unwrap();
    for line in Line::ALL {
        of("shop", line).up(&mut admin).await.unwrap();
    }
    admin.execute("ALTER SCHEMA shop RENAME TO op; CREATE SCHEMA shop").await.unwrap();
    of("shop", Line::Outbox).up(&mut admin).await.unwrap();
    for line in Line::ALL {
        let refused = of("op", line).check(&mut admin).await.unwrap_err();
        let MigrateError::Schema(SchemaError::OtherSchema { function, named, .. }) = &refused else {
            panic!("{line}: {refused}")
        };
        assert!(function.starts_with("op.") && named.trim_matches('"') == "shop", "{refused}");
    }
    tests::roles::grant(&mut admin, &[Line::Outbox], Some(&Identifier::new("op").unwrap())).await.unwrap();
    let options = LogOptions::default().schema(Some(Identifier::new("op").unwrap()));
    let log = outbox_log::open(&db.relay_url(), source(), options).unwrap();
    let refused = log.reader(&relay()).await.map(drop).unwrap_err().to_string();
    assert!(refused.contains("relay migrate up --line outbox"), "{refused}");
    for line in Line::ALL {
        assert!(of("op", line).up(&mut admin).await.unwrap().is_empty());
        of("op", line).check(&mut admin).await.unwrap();
    }
    log.reader(&relay()).await.unwrap();
    db.run("SELECT op.outbox_enqueue_json('orders', '{}'), op.outbox_enqueue('orders', '')").await;
    assert_eq!(db.number("SELECT count(*) FROM op.outbox_message").await, 2);
    assert_eq!(db.number("SELECT count(*) FROM shop.outbox_message").await, 0);
    assert_eq!(
        of("op", Line::Outbox).snapshot(&mut admin).await.unwrap(),
        of("shop", Line::Outbox).snapshot(&mut admin).await.unwrap()
    );
    admin.close().await.unwrap();
}

async fn tables_without_a_schema_follow_their_renamed_one(db: &Database<Postgres>) {
    let mut admin = PgConnection::connect(&db.url).await.unwrap();
    admin.execute("ALTER SCHEMA public RENAME TO store; SET search_path = store").await.unwrap();
    let migrator = Migrator::<Postgres>::new(Line::Outbox);
    let refused = migrator.check(&mut admin).await.unwrap_err().to_string();
    assert!(refused.contains("the schema public"), "{refused}");
    migrator.up(&mut admin).await.unwrap();
    migrator.check(&mut admin).await.unwrap();
    admin.execute("RESET search_path; SELECT store.outbox_enqueue('orders', '')").await.unwrap();
    assert_eq!(db.number("SELECT count(*) FROM store.outbox_message").await, 1);
    admin.execute("ALTER SCHEMA store RENAME TO public").await.unwrap();
    admin.close().await.unwrap();
}

/// Goal: names that need quotes, and sessions that quote every name, are not errors, and a repair
/// leaves the schemas of extensions in the `search_path` of a function. Oracle: the checks; the
/// stored setting; a message from a session without a `search_path`.
async fn a_renamed_schema_may_have_any_name_and_keeps_the_others_of_a_search_path(db: &Database<Postgres>) {
    let mut admin = PgConnection::connect(&db.url).await.unwrap();
    let migrator = Migrator::<Postgres>::new(Line::Outbox);
    let create =
        r#"CREATE SCHEMA "sh""op"; CREATE SCHEMA extensions; SET search_path = "sh""op", extensions"#;
    admin.execute(create).await.unwrap();
    assert!(!migrator.up(&mut admin).await.unwrap().is_empty());
    migrator.check(&mut admin).await.unwrap();
    for (statement, former) in [
        (r#"ALTER SCHEMA "sh""op" RENAME TO "o""p"; SET search_path = "o""p", extensions"#, r#"sh"op"#),
        (r#"ALTER SCHEMA "o""p" RENAME TO op; SET search_path = op, extensions"#, r#"o"p"#),
    ] {
        admin.execute(statement).await.unwrap();
        let refused = migrator.check(&mut admin).await.unwrap_err();
        let MigrateError::Schema(SchemaError::OtherSchema { named, .. }) = &refused else {
            panic!("{refused}")
        };
        assert_eq!(named, former);
        assert!(migrator.up(&mut admin).await.unwrap().is_empty());
        for quotes in ["SET quote_all_identifiers = on", "SET quote_all_identifiers = off"] {
            admin.execute(quotes).await.unwrap();
            migrator.check(&mut admin).await.unwrap();
        }
    }
    let path = "SELECT array_to_string(proconfig, ';') FROM pg_proc \
        WHERE oid = 'op.outbox_enqueue'::regproc";
    let path: String = sqlx::query_scalar(path).fetch_one(&mut admin).await.unwrap();
    assert_eq!(path, "search_path=op, extensions");
    db.run("SELECT op.outbox_enqueue('orders', '')").await;
    assert_eq!(db.number("SELECT count(*) FROM op.outbox_message").await, 1);
    admin.close().await.unwrap();
}

async fn a_detached_segment_and_a_dropped_index_are_named(db: &Database<Postgres>) {
    with_every_line(db).await;
    let mut owner = PgConnection::connect(&db.url).await.unwrap();
    for line in Line::ALL {
        assert!(Migrator::<Postgres>::new(line).missing(&mut owner).await.unwrap().is_empty(), "{line}");
    }
    db.run("ALTER TABLE outbox_message DETACH PARTITION outbox_message_2").await;
    db.run("DROP INDEX outbox_exception_due_idx").await;
    let missing = Migrator::<Postgres>::new(Line::Outbox).missing(&mut owner).await.unwrap();
    assert_eq!(missing, ["index outbox_exception_due_idx", "partition outbox_message_2"]);
    owner.close().await.unwrap();
}

async fn a_new_relay_knows_those_that_nobody_runs<DB: TestDialect>(db: &Database<DB>) {
    db.enqueue([NewMessage::new("orders")]).await;
    let mut old = db.checkpoint_store("a").await;
    let (lease, _) = granted(&mut old).await;
    let other = RelayName::new("shop-orders").unwrap();
    let mut new = db.log.checkpoint_store(&other, "b").await.unwrap();
    assert!(new.left_relays().await.unwrap().is_empty(), "a process runs it");
    assert_eq!(old.release(lease.epoch).await.unwrap(), Fenced::Held);
    assert_eq!(new.left_relays().await.unwrap(), [relay().as_str()]);
    assert!(old.left_relays().await.unwrap().is_empty(), "the new one has no cursor yet");
}
