//! The bytes that each reader gets from the server: rows that are too large are not sent.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use outbox_log::{Entry, ExceptionState, LogOptions, PageLimit};
use proxy::Proxy;
use sqlx::Postgres;
use sqlx::postgres::PgConnectOptions;
use tests::Dialect as _;

use crate::outbox::rows::{
    LIMIT, MIB, check_large, due, entries, held, insert, park_all, problem, write_large, zeros,
};
use crate::outbox::support::{Database, Follower, granted, relay, source};

tests::cases! { "outbox/wire/{on}/{case}":
    on_postgres { a_row_that_is_too_large_does_not_leave_the_server }
}

/// Maximum bytes of the answers to one reader, which opens its session with them. The smallest
/// content that is too large has 3 MiB.
const ANSWERS_MAX: u64 = MIB as u64 / 2;

/// Runs a reader behind the proxy. Asserts that it got only the rows that it may have.
async fn measured<T>(wire: &Proxy, reader: &str, reading: impl Future<Output = T>) -> T {
    let before = wire.counts().answer_bytes;
    let read = reading.await;
    let bytes = wire.counts().answer_bytes - before;
    assert!((1..ANSWERS_MAX).contains(&bytes), "{reader} got {bytes} bytes");
    read
}

/// Returns the URL with the proxy's address.
fn behind(wire: &Proxy, url: &str) -> String {
    let behind = url.replace(&*wire.upstream(), &wire.address().to_string());
    assert_ne!(behind, url, "the URL names {}", wire.upstream());
    behind
}

/// Goal: no reader fetches a payload or headers that it then refuses: they could be larger than its
/// memory. Oracle: the bytes on the wire, for each reader alone; the refusals, which state lengths
/// of megabytes.
async fn a_row_that_is_too_large_does_not_leave_the_server(db: &Database<Postgres>) {
    let server: PgConnectOptions = db.url.parse().unwrap();
    let wire = Proxy::start(0, format!("{}:{}", server.get_host(), server.get_port())).await.unwrap();
    let options = LogOptions::default();
    let log = outbox_log::open(behind(&wire, &db.relay_url()).as_str(), source(), options.clone()).unwrap();
    let limit = PageLimit { entries_max: 100, ..LIMIT };

    write_large(db).await;
    let late = format!(
        "INSERT INTO outbox_message (topic, key, payload) VALUES ('orders', 'late', {})",
        zeros::<Postgres>(3 * MIB)
    );
    let mut open = db.pool.begin().await.unwrap();
    Postgres::execute(&mut open, &late).await.unwrap();
    insert(db, "topic, key, payload", "'orders', 'behind', ''").await;
    let (_, cursor) = granted(&mut db.checkpoint_store("a").await).await;
    let mut follower = Follower::new(log.reader(&relay()).await.unwrap(), cursor);
    follower.limit = limit;
    let read = measured(&wire, "the log", follower.all()).await;
    let is_late = |entry: &&Entry| entry.id.0 > 6;
    assert_eq!(read.iter().filter(is_late).count(), 1);
    check_large(read.iter().filter(|entry| !is_late(entry)));
    open.commit().await.unwrap();
    let read = measured(&wire, "the log, of a transaction that was open", follower.all()).await;
    assert!(read.len() == 1 && problem(&read[0]).unwrap().contains("3145728"), "{read:?}");

    let ids: Vec<_> = park_all(db, |entry| {
        // Row 1, held, and row 7, retrying, have large payloads that were copied.
        if entry.id.0 % 4 == 3 { ExceptionState::Retrying } else { ExceptionState::Held }
    })
    .await
    .2
    .iter()
    .map(|entry| (entry.id, entry.message_id().parse().unwrap()))
    .filter(|(id, _)| id.0 <= 6)
    .collect();
    let mut reader = log.reader(&relay()).await.unwrap();
    let mut found = measured(&wire, "due entries", due(&mut reader, limit)).await;
    found.extend(measured(&wire, "held entries", held(&mut reader, &["a", "b", "d", "e"], limit)).await);
    check_large(entries(&found).filter(|entry| !is_late(entry)));

    let (_, contents) =
        outbox_log::entries::open(behind(&wire, &db.url).as_str(), source(), options).unwrap();
    check_large(&measured(&wire, "replays", contents.contents(&ids, limit.row)).await.unwrap());
}
