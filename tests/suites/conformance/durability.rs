//! Commits that wait for the disk on a server whose settings do not require it. Each case has its
//! own server. A commit that waits brings everything before it to the disk, so each commit has its
//! own crash.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use idempotency::{Claim, ClaimOptions, Claimed, Ending, IdempotencyKeys, KeyOptions, OnExpired};
use inbox::{Admission, Candidate, ConsumerName, Gathered, Inbox, InboxOptions, Tenant};
use message::{Chunk, EventType, Fingerprint, Message, Topic};
use migrations::Line;
use outbox::{NewMessage, Outbox};
use saga::{Replied, Run, SagaId, Sagas, Signature, Started, StepError, StepKey, Stop, WorkerOptions};
use sqlx::{PgPool, Postgres};
use tests::{Cluster, Outcome, Stage};
use tokio::sync::Notify;

use crate::outbox::clusters::{key, migrate};

tests::cases! { "durability/{on}/{case}":
    postgres + xtask {
        what_was_acknowledged_survives_a_crash,
        what_was_confirmed_survives_a_crash,
        what_a_saga_goes_on_from_survives_a_crash,
        a_kept_reply_survives_a_crash,
    }
}

/// Starts a server whose commits do not wait for the disk.
async fn careless(stage: &Stage, lines: &[Line]) -> Result<Cluster, tests::Failure> {
    let server = Cluster::start(stage, &[]).await?;
    for setting in ["synchronous_commit = off", "wal_writer_delay = '10s'"] {
        server.execute(&format!("ALTER SYSTEM SET {setting}")).await?;
    }
    server.execute("SELECT pg_reload_conf()").await?;
    for line in lines {
        migrate(&server, *line).await?;
    }
    server.execute("CREATE TABLE effect (id text); CREATE TABLE unprotected (id text); CHECKPOINT").await?;
    Ok(server)
}

/// Goal: neither an effect whose delivery was acknowledged, nor a key that runs elsewhere, nor its
/// outcome is undone by a crash, on a server whose commits do not wait for the disk. Oracle: the
/// rows after a crash.
async fn what_was_acknowledged_survives_a_crash(stage: Stage) -> Outcome {
    let server = careless(&stage, &[Line::Inbox, Line::Idempotency]).await?;
    take_effect(&server).await?;
    crash(&server).await?;
    assert_eq!([count(&server, "inbox_message").await?, count(&server, "effect").await?], ["1", "1"]);
    let pool = PgPool::connect(&server.url()).await?;
    // Otherwise dropping it would release the key.
    std::mem::forget(claim(&pool, "leased").await?);
    pool.close().await;
    crash(&server).await?;
    assert_eq!(state(&server, "leased").await?, "in_progress");
    let pool = PgPool::connect(&server.url()).await?;
    claim(&pool, "completed").await?.complete(Ending::Succeeded, b"7").await?;
    pool.close().await;
    crash(&server).await?;
    assert_eq!(state(&server, "completed").await?, "succeeded");
    let pool = PgPool::connect(&server.url()).await?;
    claim(&pool, "unknown").await?.leave_unknown().await?;
    pool.close().await;
    crash(&server).await?;
    let lapsed = "SELECT (lease_until <= now())::text FROM idempotency_key WHERE key = 'unknown'";
    assert_eq!(server.text(lapsed).await?, "true");
    Ok(())
}

async fn take_effect(server: &Cluster) -> Outcome {
    let pool = PgPool::connect(&server.url()).await?;
    let inbox = Inbox::open(pool.clone(), InboxOptions::default()).await?;
    let mut tx = inbox.begin().await?;
    let admitted = tx.admit(&ConsumerName::new("billing")?, &Tenant::none(), &message("7")?).await?;
    assert!(matches!(admitted, Admission::Fresh(_)), "{admitted:?}");
    sqlx::query("INSERT INTO effect VALUES ('inbox')").execute(&mut **tx).await?;
    drop(tx.commit().await?);
    pool.close().await;
    Ok(())
}

fn message(payload: &'static str) -> Result<Message, tests::Failure> {
    Ok(Message::new(Topic::new("orders")?, EventType::new("placed")?, payload))
}

async fn claim(pool: &PgPool, name: &str) -> Result<Claim<Postgres>, tests::Failure> {
    let keys = IdempotencyKeys::open(pool.clone(), KeyOptions::default()).await?;
    let request = Fingerprint::of_parts("place-order", "text/plain", b"7");
    let options = ClaimOptions::default().on_expired(OnExpired::Refuse);
    match keys.claim(&key(name), request, &options).await? {
        Claimed::Acquired(lease) => Ok(lease),
        other => Err(format!("the key {name} is not free: {other:?}").into()),
    }
}

async fn state(server: &Cluster, key: &str) -> Result<String, tests::Failure> {
    server.text(&format!("SELECT state FROM idempotency_key WHERE key = '{key}'")).await
}

/// Goal: nothing that an inbox has confirmed is undone by a crash, although it was admitted in
/// transactions of the caller's own. Oracle: the rows after a crash.
async fn what_was_confirmed_survives_a_crash(stage: Stage) -> Outcome {
    let server = careless(&stage, &[Line::Inbox]).await?;
    for (admitted, rows) in [("one", "1 0"), ("a batch", "2 0"), ("a chunk", "2 1")] {
        confirm(&server, admitted).await?;
        crash(&server).await?;
        let found =
            "SELECT concat_ws(' ', (SELECT count(*) FROM inbox_message), (SELECT count(*) FROM inbox_chunk))";
        assert_eq!(server.text(found).await?, rows, "after {admitted}");
    }
    Ok(())
}

/// Admits a message in a separate transaction, and confirms it.
async fn confirm(server: &Cluster, how: &str) -> Outcome {
    let pool = PgPool::connect(&server.url()).await?;
    let inbox = Inbox::open(pool.clone(), InboxOptions::default()).await?;
    let (consumer, tenant) = (ConsumerName::new("billing")?, Tenant::none());
    let mut message = message("half")?;
    let mut tx = pool.begin().await?;
    match how {
        "one" => {
            let admitted = inbox.admit(&mut tx, &consumer, &tenant, &message).await?;
            assert!(matches!(admitted, Admission::Fresh(_)), "{admitted:?}");
        }
        "a batch" => {
            let candidates = [Candidate { tenant: tenant.clone(), message: &message }];
            let admitted = inbox.admit_batch(&mut tx, &consumer, &candidates).await?;
            assert!(matches!(admitted[..], [Ok(Admission::Fresh(_))]), "{admitted:?}");
        }
        _ => {
            message.chunk = Some(Box::new(Chunk::new(0, 2, 8, Fingerprint::from([7; 32]))?));
            let gathered = inbox.gather(&mut tx, &consumer, &tenant, &message).await?;
            assert_eq!(gathered, Gathered::Kept { held: 1, count: 2 });
        }
    }
    tx.commit().await?;
    drop(inbox.confirm(&consumer, &tenant, &message).await?);
    pool.close().await;
    Ok(())
}

/// Goal: a worker's claim, the outcomes that its run continues from, and the decision to undo
/// survive a crash; a run that outlives the server cannot miss one of them. Oracle: the rows after
/// a crash at each place of a saga.
async fn what_a_saga_goes_on_from_survives_a_crash(stage: Stage) -> Outcome {
    let server = careless(&stage, &[Line::Outbox, Line::Saga]).await?;
    for (place, expected) in [
        ("claimed", "running true"),
        ("reserved", "running true, reserve done"),
        ("charged", "running true, reserve done, charge done"),
        ("undoing", "undoing true, reserve done, charge done, ship refused"),
    ] {
        run_to(&server, place).await?;
        crash(&server).await?;
        assert_eq!(progress(&server, place).await?, expected);
    }
    let pool = PgPool::connect(&server.url()).await?;
    let sagas = sagas(&pool, "nowhere", &Arc::default()).await?;
    start(&pool, &sagas, "cancelled").await?;
    let signature = Signature { actor: "alice".into(), note: "ticket 7".into(), selection: None };
    sagas.cancel(&SagaId::new("checkout", "cancelled")?, &signature).await?;
    pool.close().await;
    crash(&server).await?;
    assert_eq!(progress(&server, "cancelled").await?, "undoing false");
    Ok(())
}

/// Goal: a reply that was stored in the caller's own transaction survives a crash, whether its saga
/// waits for it or has not reached its step. Its sender got an acknowledgement, and does not send
/// it again. Oracle: the rows after a crash.
async fn a_kept_reply_survives_a_crash(stage: Stage) -> Outcome {
    let server = careless(&stage, &[Line::Outbox, Line::Saga]).await?;
    for (name, is_awaited, kept) in [("early", false, "1"), ("awaited", true, "2")] {
        let pool = PgPool::connect(&server.url()).await?;
        let code = async |saga: &mut Run<Postgres>, _: i64| {
            let parcel: String = saga.request("ship", NewMessage::new("shipping")).await?;
            Ok::<_, Stop>(parcel)
        };
        let sagas = Sagas::builder(pool.clone(), Outbox::new()).saga("checkout", 1, code).open().await?;
        start(&pool, &sagas, name).await?;
        if is_awaited {
            wait_for_its_reply(&server, &sagas, name).await?;
        }
        let mut tx = pool.begin().await?;
        let key: StepKey = format!("checkout/{name}/ship").parse()?;
        assert_eq!(sagas.reply(&mut tx, &key, &"P-1".into()).await?, Replied::Kept);
        tx.commit().await?;
        pool.close().await;
        crash(&server).await?;
        assert_eq!(count(&server, "saga_reply").await?, kept, "after the reply to {name}");
    }
    Ok(())
}

/// Runs a saga until it waits for a reply and no worker holds it.
async fn wait_for_its_reply(server: &Cluster, sagas: &Sagas<Postgres>, name: &str) -> Outcome {
    let running = sagas.clone();
    let worker = tokio::spawn(async move { running.run(std::future::pending()).await });
    let sql = format!(
        "SELECT count(*)::text FROM saga WHERE id = '{name}' AND waits_for = 'ship' AND worker IS NULL"
    );
    let waits = async {
        while server.text(&sql).await? != "1" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok::<_, tests::Failure>(())
    };
    let waits = tokio::time::timeout(Duration::from_secs(20), waits).await;
    worker.abort();
    drop(worker.await);
    waits?
}

/// Starts the saga of this name, and runs it until it reaches the point of the same name.
async fn run_to(server: &Cluster, place: &'static str) -> Outcome {
    let pool = PgPool::connect(&server.url()).await?;
    let is_there = Arc::new(Notify::new());
    let sagas = sagas(&pool, place, &is_there).await?;
    start(&pool, &sagas, place).await?;
    let worker = tokio::spawn(async move { sagas.run(std::future::pending()).await });
    let came = tokio::time::timeout(Duration::from_secs(20), is_there.notified()).await;
    worker.abort();
    drop(worker.await);
    pool.close().await;
    Ok(came?)
}

/// Opens sagas whose code stays at one point forever. Nothing renews a lease meanwhile.
async fn sagas(
    pool: &PgPool,
    place: &'static str,
    is_there: &Arc<Notify>,
) -> Result<Sagas<Postgres>, tests::Failure> {
    let is_there = Arc::clone(is_there);
    let code = async move |saga: &mut Run<Postgres>, _: i64| {
        stay(&is_there, place == "claimed").await;
        saga.step("reserve", async |_| Ok(())).await?;
        stay(&is_there, place == "reserved").await;
        saga.call("charge", async |_: &StepKey| Ok::<_, StepError>(()))
            .undo(async |_: &StepKey, _: Option<&()>| {
                stay(&is_there, place == "undoing").await;
                Ok::<_, StepError>(())
            })
            .await?;
        stay(&is_there, place == "charged").await;
        saga.call("ship", async |_: &StepKey| Err::<(), _>(StepError::stop("sold out"))).await
    };
    let options = WorkerOptions::default().lease(Duration::from_secs(600));
    let sagas = Sagas::builder(pool.clone(), Outbox::new()).options(options).saga("checkout", 1, code);
    Ok(sagas.open().await?)
}

async fn stay(is_there: &Notify, is_here: bool) {
    if is_here {
        is_there.notify_one();
        std::future::pending::<()>().await;
    }
}

async fn start(pool: &PgPool, sagas: &Sagas<Postgres>, name: &str) -> Outcome {
    let mut tx = Outbox::new().begin(pool).await?;
    assert_eq!(sagas.start(&mut tx, "checkout", name, &7_i64).await?, Started::Started);
    Ok(tx.commit().await?)
}

/// Returns the state of a saga, whether a worker has it, and its steps.
async fn progress(server: &Cluster, name: &str) -> Result<String, tests::Failure> {
    let sql = format!(
        "SELECT concat_ws(', ', s.state || ' ' || (s.worker IS NOT NULL)::text,
            (SELECT string_agg(t.name || ' ' || t.state, ', ' ORDER BY t.position)
                FROM saga_step AS t WHERE t.id = s.id))
         FROM saga AS s WHERE s.id = '{name}'"
    );
    server.text(&sql).await
}

/// Crashes the server after a commit that does not wait, and checks that this commit is lost.
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
