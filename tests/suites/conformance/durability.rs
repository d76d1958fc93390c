//! Commits that wait for the disk on a server that does not ask for it. Each case has a server of
//! its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use idempotency::{ClaimOptions, Claimed, IdempotencyKeys, KeyOptions};
use inbox::{Admission, ConsumerName, Inbox, InboxOptions, Tenant};
use libtest_mimic::Trial;
use message::{EventType, Fingerprint, Message, Topic};
use migrations::Line;
use tests::cluster::NEEDS;
use tests::{Cluster, Outcome, Stage, trial};

use crate::outbox::clusters::{key, migrate};

pub(crate) fn trials() -> Vec<Trial> {
    let name = "durability/postgres/what_was_acknowledged_survives_a_crash";
    vec![trial(name, &NEEDS, what_was_acknowledged_survives_a_crash)]
}

/// Goal: neither an effect whose delivery was acknowledged nor a key that runs elsewhere is undone
/// by a crash, on a server whose commits do not wait for the disk. Oracle: the rows after the crash.
async fn what_was_acknowledged_survives_a_crash(stage: Stage) -> Outcome {
    let settings = [("synchronous_commit", "off"), ("wal_writer_delay", "10s")];
    let server = Cluster::start(&stage, &settings).await?;
    for line in [Line::Inbox, Line::Idempotency] {
        migrate(&server, line).await?;
    }
    server.execute("CREATE TABLE effect (id text); CREATE TABLE unprotected (id text); CHECKPOINT").await?;
    let pool = sqlx::PgPool::connect(&server.url()).await?;
    let inbox = Inbox::open(pool.clone(), InboxOptions::default()).await?;
    let keys = IdempotencyKeys::open(pool.clone(), KeyOptions::default()).await?;
    let (topic, kind) = (Topic::new("orders")?, EventType::new("placed")?);
    let mut tx = inbox.begin().await?;
    let message = Message::new(topic, kind, "7");
    let admitted = tx.admit(&ConsumerName::new("billing")?, &Tenant::none(), &message).await?;
    assert!(matches!(admitted, Admission::Fresh(_)), "{admitted:?}");
    sqlx::query("INSERT INTO effect VALUES ('inbox')").execute(&mut **tx).await?;
    drop(tx.commit().await?);
    let request = Fingerprint::of_parts("place-order", "text/plain", b"7");
    let claimed = keys.claim(&key("leased"), request, &ClaimOptions::default()).await?;
    assert!(matches!(claimed, Claimed::Acquired(_)));
    // Last, because a commit that waits brings everything before it to the disk.
    sqlx::query("INSERT INTO unprotected VALUES ('plain')").execute(&pool).await?;
    server.crash().await?;
    server.resume().await?;
    let count = async |table: &str| server.text(&format!("SELECT count(*)::text FROM {table}")).await;
    assert_eq!(count("unprotected").await?, "0", "the server does not wait");
    assert_eq!((count("inbox_message").await?, count("effect").await?), ("1".into(), "1".into()));
    assert_eq!(count("idempotency_key").await?, "1");
    Ok(())
}
