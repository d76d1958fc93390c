//! Ids that contain the number of their transaction.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::sync::Arc;

use crate::outbox::support::Database;
use message::MessageId;
use outbox::NewMessage;
use outbox::postgres::transaction_ids::{TAKEN_MAX, TransactionIdError, take};
use sqlx::{Connection, Executor, PgConnection, PgPool, Postgres};
use tests::Role;
use tokio::sync::Barrier;

tests::cases! { "outbox/transaction_ids/{on}/{case}":
    on_postgres {
        thirty_two_transactions_at_once_share_no_id,
        everybody_in_a_transaction_shares_its_counter,
        a_savepoint_that_is_rolled_back_gives_its_ids_back,
        counts_out_of_bounds_are_refused,
        the_timeline_is_the_one_that_is_written,
    }
}

const AT_ONCE: usize = 32;
const ROUNDS: usize = 12;

async fn pool(db: &Database<Postgres>) -> PgPool {
    let url = Role::Producer.url(&db.url).unwrap();
    let size = u32::try_from(AT_ONCE).unwrap();
    outbox::pool_options::<Postgres>().max_connections(size).connect(&url).await.unwrap()
}

/// The transactions run as producers, with the fewest rights. Every third is rolled back, and its
/// ids are never used again.
async fn thirty_two_transactions_at_once_share_no_id(db: &Database<Postgres>) {
    let pool = pool(db).await;
    let together = Arc::new(Barrier::new(AT_ONCE));
    let work = |number: usize| {
        let (pool, outbox, together) = (pool.clone(), db.outbox.clone(), Arc::clone(&together));
        async move {
            let mut taken = Vec::new();
            for round in 0..ROUNDS {
                let mut tx = pool.begin().await.unwrap();
                let mut ids = take(&mut tx, 2).await.unwrap();
                // All transactions are open now, and most began within a few milliseconds.
                together.wait().await;
                ids.extend(take(&mut tx, 3).await.unwrap());
                let messages = ids.iter().map(|id| NewMessage::new("orders").id(*id));
                outbox.enqueue_batch(&mut tx, messages.collect::<Vec<_>>()).await.unwrap();
                if (number + round).is_multiple_of(3) {
                    tx.rollback().await.unwrap();
                } else {
                    tx.commit().await.unwrap();
                }
                taken.extend(ids);
            }
            taken
        }
    };
    let working: Vec<_> = (0..AT_ONCE).map(|number| tokio::spawn(work(number))).collect();
    let mut all = Vec::new();
    for worker in working {
        all.extend(worker.await.unwrap());
    }
    assert_eq!(all.len(), AT_ONCE * ROUNDS * 5);
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    assert_eq!(db.rows().await, i64::try_from(all.len() * 2 / 3).unwrap());
    pool.close().await;
}

async fn everybody_in_a_transaction_shares_its_counter(db: &Database<Postgres>) {
    let mut tx = db.pool.begin().await.unwrap();
    let began_at: time::OffsetDateTime =
        sqlx::query_scalar("SELECT now()").fetch_one(&mut *tx).await.unwrap();
    let mut ids: Vec<MessageId> = Vec::new();
    for count in [1, 4_096, 1, 70, 5_000] {
        ids.extend(take(&mut tx, count).await.unwrap());
    }
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "they ascend over all calls");
    assert!(began_at - ids[0].generated_at() < time::Duration::milliseconds(1));
    tx.commit().await.unwrap();

    // In the next transaction of the same session the counter restarts, but the ids differ.
    let mut tx = db.pool.begin().await.unwrap();
    let other = take(&mut tx, 100).await.unwrap();
    assert!(other.iter().all(|id| !ids.contains(id)));
    tx.rollback().await.unwrap();
}

async fn a_savepoint_that_is_rolled_back_gives_its_ids_back(db: &Database<Postgres>) {
    let mut tx = db.pool.begin().await.unwrap();
    let first = take(&mut tx, 2).await.unwrap();
    tx.execute("SAVEPOINT one").await.unwrap();
    let undone = take(&mut tx, 2).await.unwrap();
    tx.execute("ROLLBACK TO SAVEPOINT one").await.unwrap();
    let instead = take(&mut tx, 2).await.unwrap();
    assert_eq!(undone, instead);
    assert!(first[1] < instead[0]);
    tx.commit().await.unwrap();
}

async fn counts_out_of_bounds_are_refused(db: &Database<Postgres>) {
    let mut tx = db.pool.begin().await.unwrap();
    for count in [0, TAKEN_MAX + 1] {
        let error = take(&mut tx, count).await.unwrap_err();
        assert!(matches!(error, TransactionIdError::Count { .. }), "{error}");
    }
    for _ in 0..16 {
        assert_eq!(take(&mut tx, TAKEN_MAX).await.unwrap().len(), 65_536);
    }
    let error = take(&mut tx, 1).await.unwrap_err();
    assert!(matches!(error, TransactionIdError::UsedUp { taken: 1_048_577 }), "{error}");
    tx.rollback().await.unwrap();
}

/// The timeline in the name of the WAL file is the one that the server itself reports after a
/// checkpoint.
async fn the_timeline_is_the_one_that_is_written(db: &Database<Postgres>) {
    let mut admin = PgConnection::connect(&db.url).await.unwrap();
    admin.execute("CHECKPOINT").await.unwrap();
    let (named, controlled): (i64, i64) = sqlx::query_as(
        "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint, timeline_id::bigint \
         FROM pg_control_checkpoint()",
    )
    .fetch_one(&mut admin)
    .await
    .unwrap();
    assert_eq!(named, controlled);
    admin.close().await.unwrap();
}
