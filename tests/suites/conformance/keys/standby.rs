//! A commit whose answer is lost, while the server's name leads to a standby that lags. The case
//! has its own servers.

use super::*;
use crate::outbox::clusters::migrate;
use migrations::Line;
use outbox::CommitError;
use proxy::Pass;
use sqlx::Connection as _;
use tests::{Cluster, Outcome, eventually};

tests::cases! { "keys/standby/{on}/{case}":
    postgres + xtask { a_standby_that_lags_denies_no_commit }
}

/// The number of keys with an outcome.
const DONE: &str = "SELECT count(*)::text FROM idempotency_key WHERE state = 'succeeded'";

/// Makes the commit of a key wait for the test.
const SLOW_COMMIT: &str = "
    CREATE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT OR UPDATE ON idempotency_key
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_for_the_test()";

/// Waits until a query returns a text.
async fn returns(cluster: &Cluster, what: &str, query: &str, expected: &str) -> Outcome {
    eventually(what, || async { Ok((cluster.text(query).await? == expected).then_some(())) }).await
}

/// Goal: a commit reached the primary, its answer is lost, and the name of the server leads to a
/// standby that has not replayed it: the outcome is unknown, and not a rollback. Oracle: the
/// primary has the key's outcome before the answer is lost, and the standby only after it has
/// replayed.
async fn a_standby_that_lags_denies_no_commit(stage: Stage) -> Outcome {
    let primary = Cluster::start(&stage, &[]).await?;
    migrate(&primary, Line::Idempotency).await?;
    primary.execute(SLOW_COMMIT).await?;
    let standby = primary.standby(&stage).await?;
    standby.execute("SELECT pg_wal_replay_pause()").await?;
    returns(&standby, "the standby lags", "SELECT pg_is_wal_replay_paused()::text", "true").await?;

    let (pool, wire) = crate::proxied::pool(&primary.url(), 2).await;
    let keys = IdempotencyKeys::open(pool, KeyOptions::default()).await?;
    let claimed = keys.begin(&key("k"), request("k"), &ClaimOptions::default()).await?;
    let Claimed::Acquired(tx) = claimed else { return Err("the key is not free".into()) };
    let mut test = sqlx::PgConnection::connect(&primary.url()).await?;
    Postgres::execute(&mut test, "SELECT pg_advisory_lock(4711)").await?;
    let committing = tokio::spawn(tx.commit(Ending::Succeeded, b"done"));
    let waits =
        "SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted";
    returns(&primary, "the transaction commits", waits, "1").await?;
    // From here on no answer arrives, but the primary has all that the client sent.
    wire.change(|network| network.answers.pass = Pass::Lose);
    Postgres::execute(&mut test, "SELECT pg_advisory_unlock(4711)").await?;
    returns(&primary, "the primary has committed", DONE, "1").await?;
    wire.redirect(standby.address());
    wire.cut();
    wire.heal();

    let error = committing.await?.err().ok_or("the answer was not lost")?;
    assert_eq!(standby.text(DONE).await?, "0", "the standby has replayed too early");
    assert!(matches!(error, CommitError::Unknown { .. }), "{error:?}");
    standby.execute("SELECT pg_wal_replay_resume()").await?;
    returns(&standby, "the standby has the commit", DONE, "1").await?;
    test.close().await?;
    keys.pool().close().await;
    Ok(())
}
