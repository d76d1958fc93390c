//! A commit whose answer is lost: a proxy between service and PostgreSQL cuts the connection around
//! COMMIT.

use outbox::CommitError;

use super::*;
use crate::outbox::unknown_commit::{Cut, cut_pool_of};

tests::cases! { "keys/unknown_commit/{on}/{case}":
    on_postgres {
        a_commit_that_happened_is_recognised,
        a_commit_that_never_arrived_is_told_and_leaves_the_key_free,
        a_claim_whose_lost_commit_still_runs_is_found_out,
    }
    night on_postgres { a_database_host_that_is_gone_keeps_no_request }
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

/// Goal: when the answer to a lease claim is lost, but its session still commits, the claim
/// recognises the lease as its own. Oracle: the key is acquired, as the first attempt, and not
/// reported as in flight.
async fn a_claim_whose_lost_commit_still_runs_is_found_out(db: Database<Postgres>) {
    db.execute(
        "CREATE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON idempotency_key DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION wait_for_the_test()",
    )
    .await
    .unwrap();
    let mut test = db.admin.acquire().await.unwrap();
    Postgres::execute(&mut test, "SELECT pg_advisory_lock(4711)").await.unwrap();
    let (pool, wire) = crate::proxied::pool(&Role::Service.url(&db.url).unwrap(), 2).await;
    let keys = IdempotencyKeys::open(pool, KeyOptions::default()).await.unwrap();
    let claiming = keys.clone();
    let claiming = tokio::spawn(async move { claim(&claiming, "k", "k").await });
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted \
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    tests::eventually("it commits", async || Ok((db.integer(waits).await? == 1).then_some(())))
        .await
        .unwrap();
    wire.cut();
    let asked = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}' AND state = 'idle' \
            AND datname = current_database() AND query IN ('COMMIT', 'BEGIN; ROLLBACK')",
        crate::proxied::PROXIED
    );
    tests::eventually("another session has found the key locked", async || {
        Ok((db.integer(&asked).await? >= 1).then_some(()))
    })
    .await
    .unwrap();
    Postgres::execute(&mut test, "SELECT pg_advisory_unlock(4711)").await.unwrap();
    let claimed = claiming.await.unwrap();
    let Claimed::Acquired(mine) = claimed else { panic!("{}", claimed.as_str()) };
    assert_eq!(mine.attempt(), 1);
    mine.complete(Ending::Succeeded, b"done").await.unwrap();
    assert_eq!(run(&keys, "k").await, "replay");
    keys.pool().close().await;
}

/// Goal: a host that disappears silently delays no request forever, and no request fails after
/// another host answers at its address. Oracle: each call returns, and then the key runs.
async fn a_database_host_that_is_gone_keeps_no_request(db: Database<Postgres>) {
    let (pool, wire) = crate::proxied::pool(&Role::Service.url(&db.url).unwrap(), 2).await;
    let options = KeyOptions::default().call_timeout(std::time::Duration::from_secs(1));
    let keys = IdempotencyKeys::open(pool, options).await.unwrap();
    let Claimed::Acquired(lease) = claim(&keys, "lease", "lease").await else { panic!() };
    let Claimed::Acquired(tx) =
        keys.begin(&key("tx"), request("tx"), &ClaimOptions::default()).await.unwrap()
    else {
        panic!()
    };
    wire.abandon(proxy::End::Server);
    lease.complete(Ending::Succeeded, b"done").await.unwrap_err();
    tx.commit(Ending::Succeeded, b"tx").await.unwrap_err();
    tests::eventually("requests run again", async || {
        let claimed = keys.begin(&key("again"), request("again"), &ClaimOptions::default()).await;
        let Ok(Claimed::Acquired(tx)) = claimed else { return Ok(None) };
        Ok(Some(tx.commit(Ending::Succeeded, b"again").await?))
    })
    .await
    .unwrap();
    wire.end_abandonment();
    keys.pool().close().await;
}
