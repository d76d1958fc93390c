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
/// by a crash, on a server whose commits do not wait for the disk. Oracle: the rows after a crash.
/// A commit that waits brings everything before it to the disk, so each has a crash of its own.
async fn what_was_acknowledged_survives_a_crash(stage: Stage) -> Outcome {
    let server = Cluster::start(&stage, &[]).await?;
    for setting in ["synchronous_commit = off", "wal_writer_delay = '10s'"] {
        server.execute(&format!("ALTER SYSTEM SET {setting}")).await?;
    }
    server.execute("SELECT pg_reload_conf()").await?;
    for line in [Line::Inbox, Line::Idempotency] {
        migrate(&server, line).await?;
    }
    server.execute("CREATE TABLE effect (id text); CREATE TABLE unprotected (id text); CHECKPOINT").await?;
    take_effect(&server).await?;
    crash(&server).await?;
    assert_eq!([count(&server, "inbox_message").await?, count(&server, "effect").await?], ["1", "1"]);
    claim(&server).await?;
    crash(&server).await?;
    assert_eq!(count(&server, "idempotency_key").await?, "1");
    Ok(())
}

async fn take_effect(server: &Cluster) -> Outcome {
    let pool = sqlx::PgPool::connect(&server.url()).await?;
    let inbox = Inbox::open(pool.clone(), InboxOptions::default()).await?;
    let message = Message::new(Topic::new("orders")?, EventType::new("placed")?, "7");
    let mut tx = inbox.begin().await?;
    let admitted = tx.admit(&ConsumerName::new("billing")?, &Tenant::none(), &message).await?;
    assert!(matches!(admitted, Admission::Fresh(_)), "{admitted:?}");
    sqlx::query("INSERT INTO effect VALUES ('inbox')").execute(&mut **tx).await?;
    drop(tx.commit().await?);
    pool.close().await;
    Ok(())
}

async fn claim(server: &Cluster) -> Outcome {
    let pool = sqlx::PgPool::connect(&server.url()).await?;
    let keys = IdempotencyKeys::open(pool.clone(), KeyOptions::default()).await?;
    let request = Fingerprint::of_parts("place-order", "text/plain", b"7");
    let claimed = keys.claim(&key("leased"), request, &ClaimOptions::default()).await?;
    let Claimed::Acquired(lease) = claimed else { return Err("the key is not free".into()) };
    // Otherwise dropping it would give the key back.
    std::mem::forget(lease);
    Ok(())
}

/// Crashes the server after a commit that does not wait, and demands that this one is gone.
async fn crash(server: &Cluster) -> Outcome {
    server.execute("INSERT INTO unprotected VALUES ('plain')").await?;
    server.crash().await?;
    server.resume().await?;
    assert_eq!(count(server, "unprotected").await?, "0", "the server does not wait");
    Ok(())
}

async fn count(server: &Cluster, table: &str) -> Result<String, tests::Failure> {
    server.text(&format!("SELECT count(*)::text FROM {table}")).await
}
