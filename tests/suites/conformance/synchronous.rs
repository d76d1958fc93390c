//! Commits on SQLite that wait for the disk, on connections of a service that does not set it
//! (`PRAGMA synchronous`). Whether a commit has waited cannot be seen without a power loss, so the
//! cases read the setting of its connection.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use idempotency::{ClaimOptions, Claimed, IdempotencyKeys, KeyOptions};
use inbox::{Admission, Candidate, ConsumerName, Gathered, Inbox, InboxOptions, Tenant};
use message::{Chunk, EventType, Fingerprint, Message, Topic, error_text};
use outbox::{NewMessage, Outbox};
use saga::{Replied, Run, Sagas, Started, StepKey};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Row as _, Sqlite, SqliteConnection, SqlitePool};
use tests::{Dialect, Failure, Outcome, Stage};
use tokio::sync::{Notify, mpsc};

use crate::outbox::clusters::key;

const FULL: i64 = 2;
const EXTRA: i64 = 3;

tests::cases! { "durability/{on}/{case}":
    sqlite {
        transactions_of_the_toolkit_wait,
        every_commit_of_a_worker_waits,
        a_transaction_of_ones_own_that_does_not_wait_is_refused,
        a_transaction_of_ones_own_that_waits_is_accepted,
    }
}

/// Opens a pool as a service does that chose this setting itself.
async fn pool(stage: &Stage, synchronous: SqliteSynchronous, size: u32) -> Result<SqlitePool, Failure> {
    let url = Sqlite::create_migrated(stage).await?;
    let options: SqliteConnectOptions = url.parse()?;
    let options = options.synchronous(synchronous).busy_timeout(Duration::from_secs(10));
    Ok(SqlitePoolOptions::new().max_connections(size).connect_with(options).await?)
}

/// Reads the setting of a connection. It must not be prepared, because a prepared statement would
/// return the old value.
async fn synchronous(connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    sqlx::raw_sql("PRAGMA synchronous").fetch_one(connection).await?.try_get(0)
}

/// Sets the only connection of a pool back to the choice of its service.
async fn set(pool: &SqlitePool, level: i64) -> Outcome {
    let mut connection = pool.acquire().await?;
    let set = sqlx::AssertSqlSafe(format!("PRAGMA synchronous = {level}"));
    sqlx::raw_sql(set).execute(&mut *connection).await?;
    assert_eq!(synchronous(&mut connection).await?, level, "the case set nothing");
    Ok(())
}

fn message() -> Result<Message, Failure> {
    Ok(Message::new(Topic::new("orders")?, EventType::new("placed")?, "half"))
}

/// Goal: a transaction that the toolkit begins runs with FULL, whatever the service has chosen, and
/// with EXTRA if it has chosen that. Oracle: the setting of its connection, read inside it.
async fn transactions_of_the_toolkit_wait(stage: Stage) -> Outcome {
    let pool = pool(&stage, SqliteSynchronous::Normal, 1).await?;
    let inbox = Inbox::open(pool.clone(), InboxOptions::default()).await?;
    let keys = IdempotencyKeys::open(pool.clone(), KeyOptions::default()).await?;
    let request = Fingerprint::of_parts("place-order", "text/plain", b"7");
    for (chosen, expected) in [(0, FULL), (1, FULL), (FULL, FULL), (EXTRA, EXTRA)] {
        set(&pool, chosen).await?;
        let mut tx = Outbox::<Sqlite>::new().begin(&pool).await?;
        assert_eq!(synchronous(&mut tx).await?, expected, "of a producer that chose {chosen}");
        tx.rollback().await?;

        set(&pool, chosen).await?;
        let mut tx = inbox.begin().await?;
        assert_eq!(synchronous(&mut tx).await?, expected, "of a consumer that chose {chosen}");
        drop(tx);

        set(&pool, chosen).await?;
        let name = format!("held-{chosen}");
        let Claimed::Acquired(mut tx) = keys.begin(&key(&name), request, &ClaimOptions::default()).await?
        else {
            return Err(format!("the key {name} is not free").into());
        };
        assert_eq!(synchronous(&mut tx).await?, expected, "of a key that a transaction holds");
        tx.rollback().await?;

        set(&pool, chosen).await?;
        let name = format!("leased-{chosen}");
        let Claimed::Acquired(claim) = keys.claim(&key(&name), request, &ClaimOptions::default()).await?
        else {
            return Err(format!("the key {name} is not free").into());
        };
        assert_eq!(synchronous(&mut *pool.acquire().await?).await?, expected, "of a claim");
        claim.release().await?;
    }
    Ok(())
}

/// Goal: no commit of a worker of sagas, in a transaction or without one, runs on a connection that
/// does not wait. Oracle: the setting inside the transaction of a step, and then of every
/// connection that the pool has opened.
async fn every_commit_of_a_worker_waits(stage: Stage) -> Outcome {
    let pool = pool(&stage, SqliteSynchronous::Off, 5).await?;
    let (levels, mut found) = mpsc::unbounded_channel();
    let code = async move |saga: &mut Run<Sqlite>, _: i64| {
        saga.step("look", async |tx| {
            assert!(levels.send(synchronous(tx).await?).is_ok(), "the case has ended");
            Ok(())
        })
        .await
    };
    let sagas = Sagas::builder(pool.clone(), Outbox::new()).saga("checkout", 1, code).open().await?;
    let mut tx = Outbox::new().begin(&pool).await?;
    assert_eq!(sagas.start(&mut tx, "checkout", "7", &7_i64).await?, Started::Started);
    tx.commit().await?;
    let stop = Arc::new(Notify::new());
    let stopped = Arc::clone(&stop);
    let worker = tokio::spawn(async move { sagas.run(async move { stopped.notified().await }).await });
    let level = tokio::time::timeout(Duration::from_mins(4), found.recv()).await?;
    stop.notify_one();
    worker.await?;
    assert_eq!(level, Some(FULL), "in the transaction of a step");
    let is_idle = async {
        while u32::try_from(pool.num_idle()) != Ok(pool.size()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(4), is_idle).await?;
    let mut connections = Vec::new();
    while let Some(mut connection) = pool.try_acquire() {
        assert_eq!(synchronous(&mut connection).await?, FULL, "of connection {}", connections.len());
        connections.push(connection);
    }
    assert!(!connections.is_empty(), "the pool has kept no connection to look at");
    Ok(())
}

/// Goal: an inbox and sagas refuse a caller's own transaction whose commit could be lost after it
/// was acknowledged; the error names the setting, the limit and the remedy. A producer decides for
/// itself. Oracle: the text of the error.
async fn a_transaction_of_ones_own_that_does_not_wait_is_refused(stage: Stage) -> Outcome {
    let pool = pool(&stage, SqliteSynchronous::Normal, 1).await?;
    for (level, found) in [(1, "is 1 (NORMAL)"), (0, "is 0 (OFF)")] {
        for call in Call::ALL {
            let error = in_a_transaction_of_ones_own(&pool, level, call).await.unwrap_err();
            let text = error_text::chain(&*error);
            for part in ["PRAGMA synchronous", found, "at least 2 (FULL)", "SqliteSynchronous::Full"] {
                assert!(text.contains(part), "{call:?}: {text} does not say {part}");
            }
        }
        set(&pool, level).await?;
        let mut tx = pool.begin().await?;
        let stored = Outbox::new().enqueue(&mut tx, NewMessage::new("orders")).await?;
        assert!(!stored.is_duplicate());
        assert_eq!(synchronous(&mut tx).await?, level, "a producer's own transaction");
        tx.commit().await?;
    }
    Ok(())
}

/// Goal: with FULL and EXTRA the same transactions are accepted, so the refusal is about the
/// setting alone.
async fn a_transaction_of_ones_own_that_waits_is_accepted(stage: Stage) -> Outcome {
    let pool = pool(&stage, SqliteSynchronous::Normal, 1).await?;
    for level in [FULL, EXTRA] {
        for call in Call::ALL {
            in_a_transaction_of_ones_own(&pool, level, call).await?;
            assert_eq!(synchronous(&mut *pool.acquire().await?).await?, level, "after {call:?}");
        }
    }
    Ok(())
}

/// A call in a transaction of the caller's own.
#[derive(Debug, Clone, Copy)]
enum Call {
    Admit,
    AdmitBatch,
    Gather,
    Start,
    Reply,
}

impl Call {
    const ALL: [Self; 5] = [Self::Admit, Self::AdmitBatch, Self::Gather, Self::Start, Self::Reply];
}

/// Makes one call in a transaction that the case begins itself, with this setting, and commits.
async fn in_a_transaction_of_ones_own(pool: &SqlitePool, level: i64, call: Call) -> Outcome {
    let inbox = Inbox::open(pool.clone(), InboxOptions::default()).await?;
    let code = async |_: &mut Run<Sqlite>, _: i64| Ok::<_, saga::Stop>(());
    let sagas = Sagas::builder(pool.clone(), Outbox::new()).saga("checkout", 1, code).open().await?;
    let name = format!("{call:?}-{level}");
    if matches!(call, Call::Reply) {
        let mut tx = Outbox::new().begin(pool).await?;
        assert_eq!(sagas.start(&mut tx, "checkout", &name, &7_i64).await?, Started::Started);
        tx.commit().await?;
    }
    set(pool, level).await?;
    let (consumer, tenant) = (ConsumerName::new("billing")?, Tenant::none());
    let mut message = message()?;
    let mut tx = pool.begin().await?;
    match call {
        Call::Admit => {
            let admitted = inbox.admit(&mut tx, &consumer, &tenant, &message).await?;
            assert!(matches!(admitted, Admission::Fresh(_)), "{admitted:?}");
        }
        Call::AdmitBatch => {
            let candidates = [Candidate { tenant: tenant.clone(), message: &message }];
            let admitted = inbox.admit_batch(&mut tx, &consumer, &candidates).await?;
            assert!(matches!(admitted[..], [Ok(Admission::Fresh(_))]), "{admitted:?}");
        }
        Call::Gather => {
            message.chunk = Some(Box::new(Chunk::new(0, 2, 8, Fingerprint::from([7; 32]))?));
            let gathered = inbox.gather(&mut tx, &consumer, &tenant, &message).await?;
            assert_eq!(gathered, Gathered::Kept { held: 1, count: 2 });
        }
        Call::Start => {
            assert_eq!(sagas.start(&mut tx, "checkout", &name, &7_i64).await?, Started::Started);
        }
        Call::Reply => {
            let step: StepKey = format!("checkout/{name}/ship").parse()?;
            assert_eq!(sagas.reply(&mut tx, &step, &"P-1".into()).await?, Replied::Kept);
        }
    }
    Ok(tx.commit().await?)
}
