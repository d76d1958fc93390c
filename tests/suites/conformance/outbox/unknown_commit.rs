//! A commit whose answer is lost: a proxy between producer and PostgreSQL cuts the connection
//! around COMMIT, or answers in the server's place.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::outbox::support::{Database, Follower, granted, source};
use message::MessageId;
use outbox::{
    CommitError, CommitOutcome, EnqueueError, NewMessage, Outbox, OutboxTransaction, TransactionError,
    UnknownCommit,
};
use outbox_log::{Fenced, LogOptions};
use sqlx::{PgPool, Postgres, Sqlite};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

tests::cases! { "outbox/unknown_commit/{on}/{case}":
    on_postgres {
        a_commit_that_happened_is_recognised_and_not_run_again,
        a_commit_that_never_arrived_is_run_again,
        a_commit_may_be_looked_up_without_a_limit,
        an_error_of_a_pooler_does_not_prove_a_rollback,
        a_refusal_with_a_code_of_its_own_is_found_out_and_not_run_again,
        without_a_message_the_outcome_stays_unknown,
        a_caller_with_its_own_transaction_resolves_it_itself,
        messages_rolled_back_to_a_savepoint_prove_nothing,
        a_transaction_whose_status_is_gone_is_not_said_to_have_failed,
    }
    on_sqlite { what_retention_may_have_removed_is_not_said_to_have_failed }
}

/// The moment at which the proxy cuts a connection that sends COMMIT.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Cut {
    /// Before the server receives COMMIT.
    Before,
    /// After the server has committed, but before the client gets the answer.
    After,
    /// Like `After`. Before the connection ends, the client gets the error with which a pooler
    /// reports that it has lost its server.
    Denied,
}

/// A FATAL error with the code of an internal error, which Supavisor uses for a lost server.
const DENIAL: &[u8] =
    b"E\0\0\0\x4cSFATAL\0VFATAL\0CXX000\0Mthe pooler has lost its connection to the server\0\0";

/// Forwards connections, and cuts the first `cuts` of them that send COMMIT. Returns its port, and
/// the number of cuts left.
async fn proxy(target: String, cut: Cut, cuts: usize) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let left = Arc::new(AtomicUsize::new(cuts));
    let shared = Arc::clone(&left);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(&target).await.unwrap();
            tokio::spawn(forward(client, server, cut, Arc::clone(&shared)));
        }
    });
    (port, left)
}

async fn forward(mut client: TcpStream, mut server: TcpStream, cut: Cut, left: Arc<AtomicUsize>) {
    let (mut from_client, mut from_server) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            read = client.read(&mut from_client) => {
                let Ok(n @ 1..) = read else { return };
                let commits = from_client[..n].windows(7).any(|word| word == b"COMMIT\0");
                let cuts = commits
                    && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
                if cuts && cut == Cut::Before {
                    return;
                }
                if server.write_all(&from_client[..n]).await.is_err() {
                    return;
                }
                if cuts {
                    // The answer proves that the commit is done, but the client does not get it.
                    let _ = server.read(&mut from_server).await;
                    if cut == Cut::Denied {
                        let _ = client.write_all(DENIAL).await;
                    }
                    return;
                }
            }
            read = server.read(&mut from_server) => {
                let Ok(n @ 1..) = read else { return };
                if client.write_all(&from_server[..n]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Connects a producer's pool through the proxy.
async fn cut_pool(db: &Database<Postgres>, cut: Cut, cuts: usize) -> (PgPool, Arc<AtomicUsize>) {
    cut_pool_of(&tests::Role::Producer.url(&db.url).unwrap(), cut, cuts).await
}

/// Connects a pool through the proxy. Returns it with the number of cuts left.
pub(crate) async fn cut_pool_of(url: &str, cut: Cut, cuts: usize) -> (PgPool, Arc<AtomicUsize>) {
    let options: sqlx::postgres::PgConnectOptions = url.parse().unwrap();
    let target = format!("{}:{}", options.get_host(), options.get_port());
    let (port, left) = proxy(target, cut, cuts).await;
    let options = options.host("127.0.0.1").port(port).ssl_mode(sqlx::postgres::PgSslMode::Disable);
    (outbox::pool_options::<Postgres>().connect_with(options).await.unwrap(), left)
}

async fn place(
    outbox: &Outbox<Postgres>,
    pool: &PgPool,
    runs: &Arc<AtomicUsize>,
) -> Result<(), TransactionError<EnqueueError>> {
    let runs = Arc::clone(runs);
    outbox
        .transaction(pool, async move |tx: &mut OutboxTransaction<Postgres>| {
            runs.fetch_add(1, Ordering::SeqCst);
            tx.stage(NewMessage::new("orders").payload("once")).map(|_| ())
        })
        .await
}

async fn a_commit_that_happened_is_recognised_and_not_run_again(db: &Database<Postgres>) {
    let (pool, left) = cut_pool(db, Cut::After, 1).await;
    let runs = Arc::new(AtomicUsize::new(0));
    place(&db.outbox, &pool, &runs).await.unwrap();
    assert_eq!((runs.load(Ordering::SeqCst), left.load(Ordering::SeqCst)), (1, 0));
    assert_eq!(db.rows().await, 1);
    pool.close().await;
}

async fn a_commit_that_never_arrived_is_run_again(db: &Database<Postgres>) {
    let (pool, left) = cut_pool(db, Cut::Before, 2).await;
    let runs = Arc::new(AtomicUsize::new(0));
    place(&db.outbox, &pool, &runs).await.unwrap();
    assert_eq!((runs.load(Ordering::SeqCst), left.load(Ordering::SeqCst)), (3, 0));
    assert_eq!(db.rows().await, 1);
    pool.close().await;
}

/// Oracle: the runs and the rows. A panic would make the caller run the transaction again.
async fn a_commit_may_be_looked_up_without_a_limit(db: &Database<Postgres>) {
    let (pool, left) = cut_pool(db, Cut::After, 1).await;
    let retry = outbox::RetryPolicy::default().resolve_timeout(std::time::Duration::MAX);
    let runs = Arc::new(AtomicUsize::new(0));
    place(&Outbox::<Postgres>::builder().retry(retry).build(), &pool, &runs).await.unwrap();
    assert_eq!((runs.load(Ordering::SeqCst), left.load(Ordering::SeqCst)), (1, 0));
    assert_eq!(db.rows().await, 1);
    pool.close().await;
}

/// Goal: a pooler commits, loses its server and answers with its own error: this is not reported as
/// a rollback, and the work does not happen twice. Oracle: the runs, the rows, and the error of a
/// caller with its own transaction.
async fn an_error_of_a_pooler_does_not_prove_a_rollback(db: &Database<Postgres>) {
    let (pool, left) = cut_pool(db, Cut::Denied, 1).await;
    let runs = Arc::new(AtomicUsize::new(0));
    place(&db.outbox, &pool, &runs).await.unwrap();
    assert_eq!((runs.load(Ordering::SeqCst), left.load(Ordering::SeqCst)), (1, 0));
    assert_eq!(db.rows().await, 1);
    pool.close().await;

    let (pool, _) = cut_pool(db, Cut::Denied, 1).await;
    let mut tx = db.outbox.begin(&pool).await.unwrap();
    tx.enqueue(NewMessage::new("orders")).await.unwrap();
    let error = tx.commit().await.unwrap_err();
    let CommitError::Unknown { commit, source } = error else { panic!("{error:?}") };
    assert!(source.to_string().contains("the pooler has lost"), "{source}");
    assert_eq!(db.outbox.resolve(&db.pool, &commit).await.unwrap(), CommitOutcome::Committed);
    pool.close().await;
}

/// Goal: the error of a deferred trigger whose code proves nothing is still reported as a refusal,
/// once the messages show that nothing was committed. Oracle: the error, and one run.
async fn a_refusal_with_a_code_of_its_own_is_found_out_and_not_run_again(db: &Database<Postgres>) {
    db.run(
        "CREATE FUNCTION refuses() RETURNS trigger LANGUAGE plpgsql AS \
            'BEGIN RAISE ''not today'' USING ERRCODE = ''ZZ001''; END'",
    )
    .await;
    db.run(
        "CREATE CONSTRAINT TRIGGER refuses AFTER INSERT ON outbox_message DEFERRABLE INITIALLY DEFERRED \
            FOR EACH ROW EXECUTE FUNCTION refuses()",
    )
    .await;
    let runs = Arc::new(AtomicUsize::new(0));
    let error = place(&db.outbox, &db.pool, &runs).await.unwrap_err();
    let refused = |error: &CommitError| matches!(error, CommitError::Refused { retryable: false, .. });
    assert!(matches!(&error, TransactionError::Commit(error) if refused(error)), "{error:?}");
    assert_eq!((runs.load(Ordering::SeqCst), db.rows().await), (1, 0));
}

async fn without_a_message_the_outcome_stays_unknown(db: &Database<Postgres>) {
    db.run("CREATE TABLE business (n integer)").await;
    let (pool, _) = cut_pool(db, Cut::After, 1).await;
    let done = db.outbox.transaction(&pool, async |tx: &mut OutboxTransaction<Postgres>| {
        sqlx::query("INSERT INTO business VALUES (1)").execute(tx.connection()).await?;
        Ok::<_, sqlx::Error>(())
    });
    let error = done.await.unwrap_err();
    assert!(matches!(error, TransactionError::Unknown { .. }), "{error:?}");
    pool.close().await;
}

async fn a_caller_with_its_own_transaction_resolves_it_itself(db: &Database<Postgres>) {
    for (cut, expected) in
        [(Cut::After, CommitOutcome::Committed), (Cut::Before, CommitOutcome::NotCommitted)]
    {
        let (pool, _) = cut_pool(db, cut, 1).await;
        let mut tx = db.outbox.begin(&pool).await.unwrap();
        tx.enqueue(NewMessage::new("orders")).await.unwrap();
        let error = tx.commit().await.unwrap_err();
        let CommitError::Unknown { commit, .. } = error else { panic!("{error:?}") };
        assert_eq!(commit.message_ids.len(), 1);
        assert_eq!(db.outbox.resolve(&db.pool, &commit).await.unwrap(), expected);
        pool.close().await;
    }
}

async fn messages_rolled_back_to_a_savepoint_prove_nothing(db: &Database<Postgres>) {
    for (cut, kept, expected) in [
        (Cut::After, true, CommitOutcome::Committed),
        (Cut::After, false, CommitOutcome::Unrecognisable),
        (Cut::Before, false, CommitOutcome::NotCommitted),
    ] {
        let (pool, _) = cut_pool(db, cut, 1).await;
        let mut tx = db.outbox.begin(&pool).await.unwrap();
        if kept {
            tx.enqueue(NewMessage::new("orders")).await.unwrap();
        }
        sqlx::query("SAVEPOINT inner_one").execute(tx.connection()).await.unwrap();
        tx.enqueue(NewMessage::new("orders")).await.unwrap();
        sqlx::query("ROLLBACK TO SAVEPOINT inner_one").execute(tx.connection()).await.unwrap();
        let CommitError::Unknown { commit, .. } = tx.commit().await.unwrap_err() else { panic!("known") };
        assert_eq!(db.outbox.resolve(&db.pool, &commit).await.unwrap(), expected);
        pool.close().await;
    }
}

/// Retention has removed the rows, and the server no longer knows the status of the transaction.
async fn a_transaction_whose_status_is_gone_is_not_said_to_have_failed(db: &Database<Postgres>) {
    // The transaction is older than every transaction whose status the server still has.
    let commit = UnknownCommit { message_ids: vec![MessageId::new()], transaction: Some(String::from("4")) };
    let known = "SELECT count(pg_xact_status('4'::xid8))";
    assert_eq!(db.number(known).await, 0, "the cluster was made with a log that begins later");
    let outcome = db.outbox.resolve(&db.pool, &commit).await.unwrap();
    assert_eq!(outcome, CommitOutcome::Unrecognisable);
    // The server does not know this id: it crashed after assigning it.
    let ahead = UnknownCommit { transaction: Some(String::from("4000000000")), ..commit };
    assert_eq!(db.outbox.resolve(&db.pool, &ahead).await.unwrap(), CommitOutcome::NotCommitted);
}

/// The producer asks for the outcome after the messages of the commit were published and removed.
async fn what_retention_may_have_removed_is_not_said_to_have_failed(db: &Database<Sqlite>) {
    let old: MessageId = "0190b5a2-0000-7000-8000-000000000001".parse().unwrap();
    let ahead: MessageId = "0f90b5a2-0000-7000-8000-000000000001".parse().unwrap();
    let commit = |id| UnknownCommit { message_ids: vec![id], transaction: None };
    let outcome = async |id| db.outbox.resolve(&db.pool, &commit(id)).await.unwrap();
    for id in [old, ahead, MessageId::new()] {
        assert_eq!(outcome(id).await, CommitOutcome::NotCommitted, "nothing was ever removed");
    }
    db.enqueue([NewMessage::new("orders").payload("removed")]).await;
    let mut store = db.checkpoint_store("a").await;
    let (lease, cursor) = granted(&mut store).await;
    let mut follower = Follower::new(db.reader().await, cursor);
    assert_eq!(follower.all().await.len(), 1);
    let stored = store.checkpoint(lease.epoch, &follower.cursor(), &[]).await.unwrap();
    assert_eq!(stored, Fenced::Held);
    let retention =
        outbox_log::retention::open(db.relay_url().as_str(), source(), LogOptions::default()).unwrap();
    assert_eq!(retention.expire(std::time::Duration::ZERO).await.unwrap().rows, Some(1));
    assert_eq!(outcome(old).await, CommitOutcome::Unrecognisable);
    assert_eq!(outcome(ahead).await, CommitOutcome::Unrecognisable, "above all that is noted");
    assert_eq!(outcome(MessageId::new()).await, CommitOutcome::NotCommitted);
}
