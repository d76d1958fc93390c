//! A commit whose answer is lost: a proxy between service and PostgreSQL cuts the line around
//! COMMIT.

use super::*;
use crate::outbox::unknown_commit::{Cut, cut_pool_of};
use inbox::CommitError;

key_cases! { "keys/unknown_commit":
    every {}
    postgres {
        a_commit_that_happened_is_recognised,
        a_commit_that_never_arrived_is_told_and_leaves_the_key_free,
    }
}

async fn cut(db: &Database<Postgres>, cut: Cut) -> (Result<(), CommitError>, IdempotencyKeys<Postgres>) {
    let (pool, left) = cut_pool_of(&Role::Service.url(&db.url).unwrap(), cut, 1).await;
    let keys = IdempotencyKeys::open(pool, KeyOptions::default()).await.unwrap();
    let Claimed::Acquired(mut tx) =
        keys.begin(&key("k"), request("k"), &ClaimOptions::default()).await.unwrap()
    else {
        panic!()
    };
    Postgres::apply(&mut tx, String::from("k")).await.unwrap();
    let committed = tx.commit(Ending::Succeeded, b"k").await;
    assert_eq!(left.load(std::sync::atomic::Ordering::SeqCst), 0, "the line was cut");
    (committed, keys)
}

async fn a_commit_that_happened_is_recognised(db: Database<Postgres>) {
    let (committed, keys) = cut(&db, Cut::After).await;
    committed.unwrap();
    assert_eq!((run(&keys, "k").await, effects(&db, "k").await), ("replay", 1));
    keys.pool().close().await;
}

async fn a_commit_that_never_arrived_is_told_and_leaves_the_key_free(db: Database<Postgres>) {
    let (committed, keys) = cut(&db, Cut::Before).await;
    assert!(committed.unwrap_err().is_rolled_back());
    assert_eq!((run(&keys, "k").await, effects(&db, "k").await), ("acquired", 1));
    keys.pool().close().await;
}
