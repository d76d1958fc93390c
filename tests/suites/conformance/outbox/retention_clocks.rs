//! Retention and forgotten relays when a clock is ahead, or was.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use message::MessageId;
use outbox_log::RelayName;
use outbox_log::retention::{ForgetError, HeldBack};
use sqlx::Postgres;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep};

use crate::outbox::retention::{Relay, held_back, messages, open};
use crate::outbox::support::{Database, TestDialect, relay};

tests::cases! { "outbox/retention_clocks/{on}/{case}":
    every {
        a_lease_from_a_clock_that_was_ahead_does_not_keep_its_relay,
        a_row_with_an_earlier_time_ends_the_history_of_no_other,
    }
    on_postgres { history_that_is_old_by_one_clock_is_held_back_by_the_clocks }
}

const DAY: Duration = Duration::from_secs(86_400);

/// The time after which a segment of PostgreSQL's log takes new ids again.
const RING: Duration = Duration::from_millis(1 << 29);

/// Puts the clock of the server's functions ahead, in this database. PostgreSQL calls a built-in
/// function by its oid, so it is renamed, and a function that adds to it takes its name.
const TEN_DAYS_AHEAD: &str = "
    SET allow_system_table_mods = on;
    ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO clock_of_the_server;
    CREATE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql
        AS $$ SELECT pg_catalog.clock_of_the_server() + interval '10 days' $$;
    RESET allow_system_table_mods";

/// Goal: `expire` removes exactly the segments that `segments` reports as removable, and the clocks
/// are named where they hold history back. Oracle: both answers for times on each side of the
/// difference, and the rows.
async fn history_that_is_old_by_one_clock_is_held_back_by_the_clocks(db: &Database<Postgres>) {
    let retention = open(db);
    db.enqueue(messages(10)).await;
    Relay::new(db, &relay()).await.pass(&[]).await;
    db.run(TEN_DAYS_AHEAD).await;
    let reasons = held_back(&retention, DAY).await;
    let [HeldBack::Clocks(ahead)] = reasons[..] else { panic!("{reasons:?}") };
    assert!(ahead.abs_diff(10 * DAY) < Duration::from_secs(60), "{ahead:?}");
    assert!(reasons[0].needs_attention());
    assert_eq!(held_back(&retention, 20 * DAY).await, [HeldBack::Young], "it is young by both clocks");
    assert_eq!(retention.expire(DAY).await.unwrap().segments, 0);
    assert_eq!(db.rows().await, 10);
    assert_eq!(held_back(&retention, Duration::ZERO).await, [], "it is old by both clocks");
    assert_eq!(retention.expire(Duration::ZERO).await.unwrap().segments, 1);
    assert_eq!(db.rows().await, 0);
}

/// Goal: rows with old times do not remove newer rows: one with an old enqueue time, and one that
/// was moved from another outbox with its id and its time. Oracle: the rows.
async fn a_row_with_an_earlier_time_ends_the_history_of_no_other<DB: TestDialect>(db: &Database<DB>) {
    let retention = open(db);
    db.enqueue(messages(3)).await;
    let payload = match DB::NAME {
        "SQLite" => "x'00'",
        _ => "'\\x00'",
    };
    let long_ago = match DB::NAME {
        "SQLite" => "1700000000000000",
        _ => "'2023-11-14'",
    };
    db.run(&format!(
        "INSERT INTO outbox_message (topic, payload, enqueued_at) VALUES ('orders', {payload}, {long_ago})"
    ))
    .await;
    // Its id belongs to the segment of the others, in the previous turn of the ring.
    let id = MessageId::derived(OffsetDateTime::now_utc() - RING, ["moved"]).unwrap();
    db.run(&format!(
        "INSERT INTO outbox_message (message_id, topic, payload, enqueued_at) \
         VALUES ('{id}', 'orders', {payload}, {long_ago})"
    ))
    .await;
    assert_eq!(Relay::new(db, &relay()).await.pass(&[]).await.len(), 5);
    retention.expire(DAY).await.unwrap();
    assert_eq!(db.rows().await, 5);
    retention.expire(Duration::ZERO).await.unwrap();
    assert_eq!(db.rows().await, 0);
}

/// Goal: a relay that renewed its lease while a clock was ahead, and then ended, can be forgotten
/// after the length of its lease; one that renews it meanwhile cannot. Oracle: the answers, the
/// time they take, and the cursors.
async fn a_lease_from_a_clock_that_was_ahead_does_not_keep_its_relay<DB: TestDialect>(db: &Database<DB>) {
    const LENGTH: Duration = Duration::from_secs(2);
    const LENGTH_ALIVE: Duration = Duration::from_secs(8);
    let (ended, alive) = (RelayName::new("ended").unwrap(), RelayName::new("alive").unwrap());
    for name in [&ended, &alive] {
        drop(Relay::new(db, name).await);
    }
    let day = if db.directory.is_some() { "86400000000" } else { "interval '1 day'" };
    let renewed = |name: &RelayName, length: Duration| {
        let seconds = length.as_secs();
        format!(
            "UPDATE outbox_relay SET lease_until = lease_until + {day}, lease_seconds = {seconds} \
             WHERE relay = '{name}'"
        )
    };
    db.run(&renewed(&ended, LENGTH)).await;
    db.run(&renewed(&alive, LENGTH_ALIVE)).await;
    let retention = open(db);
    let since = Instant::now();
    retention.forget(&ended, false).await.unwrap();
    assert!(since.elapsed() >= LENGTH, "it was not watched");
    let renewals = async {
        loop {
            sleep(LENGTH_ALIVE / 16).await;
            db.run(&renewed(&alive, LENGTH_ALIVE)).await;
        }
    };
    let refused = tokio::select! {
        refused = retention.forget(&alive, false) => refused,
        () = renewals => unreachable!("it goes on"),
    };
    assert!(matches!(refused, Err(ForgetError::Leading { ref holder, .. }) if holder == "a"), "{refused:?}");
    assert_eq!(db.number("SELECT count(*) FROM outbox_relay WHERE relay = 'alive'").await, 1);
    assert_eq!(db.number("SELECT count(*) FROM outbox_relay").await, 1);
}
