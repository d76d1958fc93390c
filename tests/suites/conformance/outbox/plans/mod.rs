//! No statement of the outbox costs more because the server's statistics are wrong. PostgreSQL
//! plans for tables that were never analysed or were empty when analysed, and keeps plans that it
//! made for other numbers of rows.
//!
//! The tests count the rows and the buffers that the nodes of a plan touch. Buffers alone show too
//! little: a join that compares every change with every parked row reads the rows once, and then
//! compares copies of them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cases;
mod touched;
mod unlisted;

use std::collections::BTreeSet;

use outbox_log::postgres::inventory::{self, Listed};
use outbox_log::{EntryId, ExceptionChange, ExceptionState, Fenced, Parked};
use sqlx::{AssertSqlSafe, Postgres};

use self::cases::{EXCLUDED, Fixture, LOG, PARKED, cases};
use self::touched::Sessions;
use crate::outbox::support::{Database, granted};

tests::cases! { "outbox/plans/{on}/{case}":
    on_postgres {
        a_checkpoint_touches_what_it_changes,
        no_statement_follows_the_statistics,
    }
    modules { unlisted }
}

/// The questions of `relay doctor` that read tables of the outbox.
const OF_DOCTOR: [(&str, &str); 2] = [
    ("doctor.topics", include_str!("../../../../../relay/operate/src/doctor/sql/topics.sql")),
    ("doctor.unread", include_str!("../../../../../relay/operate/src/doctor/sql/unread.sql")),
];

/// Returns every statement that is measured.
fn listed() -> Vec<Listed> {
    let of_doctor = OF_DOCTOR.iter();
    let of_doctor =
        of_doctor.map(|(name, sql)| Listed { name: (*name).to_owned(), sql: sql.replace("{schema}", "") });
    inventory::statements().into_iter().chain(of_doctor).collect()
}

/// The tables that accompany the log.
const BESIDE: [&str; 5] =
    ["outbox_exception", "outbox_parked", "outbox_rebased", "outbox_audit", "outbox_operation"];

/// Turns autovacuum off, which would update the statistics at any time.
async fn without_autovacuum(db: &Database<Postgres>) {
    let segments = (0..8).map(|number| format!("outbox_message_{number}"));
    for table in segments.chain(BESIDE.map(String::from)) {
        db.run(&format!("ALTER TABLE {table} SET (autovacuum_enabled = false)")).await;
    }
}

/// Fills the log with transactions of 1,000 messages each. The first half of the log is parked,
/// with as many decisions.
async fn fill(db: &Database<Postgres>) {
    for _ in 0..LOG / 1_000 {
        db.run(
            "INSERT INTO outbox_message (topic, key, payload) \
             SELECT 'orders', 'key-' || n % 40, '\\x00' FROM generate_series(1, 1000) AS n",
        )
        .await;
    }
    for insert in [
        "outbox_exception (relay, id, message_id, topic, key, state, due_at) SELECT 'main', id, message_id, topic, \
         key, CASE id % 100 WHEN 0 THEN 'dead' WHEN 1 THEN 'scheduled' WHEN 2 THEN 'retrying' \
         WHEN 3 THEN 'discarded' ELSE 'held' END, \
         CASE WHEN id % 100 IN (1, 2, 3) THEN now() + CASE WHEN id < 300 THEN '-1 hour' ELSE '1 hour' END::interval END \
         FROM {parked}",
        "outbox_parked (relay, id, content_type, payload, enqueued_at) SELECT 'main', id, content_type, payload, \
         enqueued_at FROM {parked}",
        "outbox_rebased (relay, id, message_id) SELECT 'main', id, message_id FROM {parked}",
        "outbox_audit (actor, relay, id, message_id, action, note, decision) SELECT 'ann', 'main', id, message_id, \
         CASE id % 3 WHEN 0 THEN 'discard' WHEN 1 THEN 'edit' ELSE 'requeue' END, 'test', \
         '0190b5a2-0000-7000-8000-0000000000d1' FROM {parked}",
        "outbox_operation (actor, relay, action, selection, note) SELECT 'ann', 'main', \
         CASE WHEN id <= 5 THEN 'revoke' ELSE 'pause' END, 'topic', 'test' FROM {parked} ORDER BY id",
    ] {
        let parked = format!("outbox_message WHERE id <= {PARKED}");
        db.run(&format!("INSERT INTO {}", insert.replace("{parked}", &parked))).await;
    }
}

/// Goal: each statement, planned with wrong statistics, touches only a few rows for each row that
/// it concerns. Oracle: the server's own count of rows and buffers in each node of the plan, for
/// generic and custom plans. The statements are prepared in three ways: while the tables are empty
/// and never analysed; while statistics say that all tables are empty; and while statistics say
/// that all are full, although the tables beside the log have been emptied.
async fn no_statement_follows_the_statistics(db: &Database<Postgres>) {
    let listed = listed();
    let names: BTreeSet<&str> = listed.iter().map(|listed| listed.name.as_str()).collect();
    let fixture = Fixture::read(db).await;
    let measured = cases(&fixture).into_iter().map(|case| case.statement);
    let known: BTreeSet<&str> = measured.chain(EXCLUDED.iter().map(|(name, _)| *name)).collect();
    assert_eq!(names, known, "each statement has a case, or a reason in EXCLUDED why it has none");

    without_autovacuum(db).await;
    let mut found = Vec::new();
    db.run("INSERT INTO outbox_relay (relay, epoch, cursor) VALUES ('main', 0, '{}')").await;
    let mut sessions = Sessions::open(db, &listed).await;
    sessions.measure("planned while empty", 0, &fixture, &mut Vec::new()).await;
    // The measurements were rolled back, but have consumed ids.
    db.run("ALTER SEQUENCE outbox_message_id_seq RESTART").await;
    fill(db).await;
    db.run("UPDATE outbox_relay SET epoch = 1, holder = 'a', lease_until = now() + interval '1 day'").await;
    let fixture = Fixture::read(db).await;
    sessions.measure("planned while empty", 0, &fixture, &mut found).await;

    db.run(
        "UPDATE pg_class SET relpages = 1, reltuples = 0 WHERE relname ~ '^outbox_' AND relkind IN ('r', 'i') \
         AND relnamespace = 'public'::regnamespace",
    )
    .await;
    let mut sessions = Sessions::open(db, &listed).await;
    sessions.measure("statistics say empty", 0, &fixture, &mut found).await;

    db.run("ANALYZE").await;
    let mut sessions = Sessions::open(db, &listed).await;
    sessions.measure("planned while full", 0, &fixture, &mut Vec::new()).await;
    for table in BESIDE {
        db.run(&format!("DELETE FROM {table}")).await;
    }
    sessions.measure("planned while full", PARKED, &fixture, &mut found).await;
    assert!(found.is_empty(), "{} of them:\n{}", found.len(), found.join("\n"));
}

/// Rows that finished sessions have read from the tables of parked entries.
const READ: &str = "SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname IN ('outbox_exception', \
    'outbox_parked'))::bigint + (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname IN \
    ('outbox_exception', 'outbox_parked'))::bigint";
const STORES: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'relay main checkpoint_store' \
    AND datname = current_database()";

/// Goal: a checkpoint reads only the rows that it changes, although its statement was planned while
/// nothing was parked. Oracle: the server's count of the rows that the session has read, while
/// 40,000 other entries are parked.
async fn a_checkpoint_touches_what_it_changes(db: &Database<Postgres>) {
    const OTHERS: i64 = 40_000;
    const EACH: i64 = 100;
    without_autovacuum(db).await;
    let mut store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut store).await;
    let first = [ExceptionChange::Resolve(EntryId(1))];
    assert_eq!(store.checkpoint(lease.epoch, &cursor, &first).await.unwrap(), Fenced::Held);

    db.run(&format!(
        "INSERT INTO outbox_message (topic, key, payload) SELECT 'orders', 'key-' || n % 40, '\\x00' \
         FROM generate_series(1, {}) AS n",
        OTHERS + 5 * EACH
    ))
    .await;
    for insert in [
        "outbox_exception (relay, id, message_id, topic, key, state) SELECT 'main', id, message_id, topic, key, 'held'",
        "outbox_parked (relay, id, content_type, payload, enqueued_at) SELECT 'main', id, content_type, payload, \
         enqueued_at",
    ] {
        db.run(&format!("INSERT INTO {insert} FROM outbox_message WHERE id <= {OTHERS}")).await;
    }
    let rows: Vec<(i64, String)> = sqlx::query_as(AssertSqlSafe(format!(
        "SELECT id, message_id::text FROM outbox_message WHERE id > {OTHERS} ORDER BY id"
    )))
    .fetch_all(&db.admin)
    .await
    .unwrap();
    db.run("SELECT pg_stat_force_next_flush()").await;
    let before = db.number(READ).await;
    let (mut changed, park) = (0, |(id, message_id): &(i64, String), attempts| {
        ExceptionChange::Park(Parked {
            id: EntryId(*id),
            message_id: message_id.clone(),
            topic: String::from("orders"),
            key: Some(String::from("key-1")),
            state: ExceptionState::Held,
            attempts,
            due_in: None,
            fault: None,
            error: None,
        })
    });
    for rows in rows.chunks(usize::try_from(EACH).unwrap()) {
        let resolved = rows.iter().map(|(id, _)| ExceptionChange::Resolve(EntryId(*id))).collect();
        let park = |attempts| rows.iter().map(|row| park(row, attempts)).collect::<Vec<_>>();
        for changes in [park(0), park(1), resolved] {
            assert_eq!(store.checkpoint(lease.epoch, &cursor, &changes).await.unwrap(), Fenced::Held);
            changed += EACH;
        }
    }
    drop(store);
    while db.number(STORES).await > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(db.number("SELECT count(*) FROM outbox_exception").await, OTHERS);
    assert_eq!(db.number("SELECT count(*) FROM outbox_parked").await, OTHERS);
    // The counts above have also read each of the other entries.
    db.run("SELECT pg_stat_force_next_flush()").await;
    let read = db.number(READ).await - before;
    eprintln!("{changed} changes beside {OTHERS} parked entries: {read} rows read");
    assert!(read <= 10 * changed + 2 * OTHERS, "{changed} changes: {read} rows read");
}
