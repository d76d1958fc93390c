//! Keys held by a transaction.

use std::time::Duration;

use outbox::CommitError;

use super::*;

tests::cases! { "keys/transaction/{on}/{case}":
    every {
        racing_requests_take_effect_once,
        what_is_rolled_back_leaves_the_key_free,
        a_transaction_that_was_exchanged_stores_nothing,
        a_transaction_that_was_ended_in_sql_is_rolled_back,
        a_transaction_that_was_ended_by_a_dropped_begin_stores_nothing,
        a_lease_that_expired_is_taken_over_by_a_transaction,
        what_was_taken_over_and_refused_is_stored_as_refused,
    }
    on_postgres {
        a_key_that_a_transaction_holds_is_in_flight,
        a_key_has_one_lock_whatever_the_search_path,
        what_has_ended_is_replayed_also_while_somebody_looks,
        a_swallowed_error_stores_nothing,
        a_service_that_hangs_loses_its_key_after_the_lease,
        a_claim_that_fails_leaves_no_failed_transaction_in_the_pool,
    }
}

async fn racing_requests_take_effect_once<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    for round in 0..40 {
        let name = format!("race-{round}");
        let racing: Vec<_> = (0..16)
            .map(|_| {
                let (keys, name) = (keys.clone(), name.clone());
                tokio::spawn(async move { run(&keys, &name).await })
            })
            .collect();
        for racer in racing {
            let word = racer.await.unwrap();
            assert!(["acquired", "in_flight", "replay"].contains(&word), "{word}");
        }
        assert_eq!(run(&keys, &name).await, "replay");
        assert_eq!(effects(&db, &name).await, 1);
    }
}

async fn what_is_rolled_back_leaves_the_key_free<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    for end in 0..3 {
        let Claimed::Acquired(mut tx) =
            keys.begin(&key("k"), request("k"), &ClaimOptions::default()).await.unwrap()
        else {
            panic!("attempt {end}: what was rolled back holds it")
        };
        DB::apply(&mut tx, String::from("k")).await.unwrap();
        if end == 0 {
            tx.rollback().await.unwrap();
        } else {
            drop(tx);
            // A dropped transaction is rolled back when the pool hands out its connection again.
            tests::eventually("it is rolled back", async || {
                let claimed = keys.begin(&key("k"), request("k"), &ClaimOptions::default()).await?;
                match claimed {
                    Claimed::Acquired(tx) => Ok(Some(tx.rollback().await?)),
                    _ => Ok(None),
                }
            })
            .await
            .unwrap();
        }
    }
    assert_eq!(effects(&db, "k").await, 0);
    assert_eq!(run(&keys, "k").await, "acquired");
    assert_eq!((run(&keys, "k").await, effects(&db, "k").await), ("replay", 1));
}

/// The caller ends the transaction with its own SQL and begins another one.
async fn a_transaction_that_was_exchanged_stores_nothing<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let Claimed::Acquired(mut tx) =
        keys.begin(&key("k"), request("k"), &ClaimOptions::default()).await.unwrap()
    else {
        panic!()
    };
    DB::execute(&mut tx, "ROLLBACK").await.unwrap();
    DB::execute(&mut tx, "BEGIN").await.unwrap();
    let committed = tx.commit(Ending::Succeeded, b"x").await;
    assert!(matches!(committed, Err(CommitError::Ended)), "{committed:?}");
    assert_eq!(run(&keys, "k").await, "acquired");
}

/// Nothing is left to roll back, which is not an error.
async fn a_transaction_that_was_ended_in_sql_is_rolled_back<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let Claimed::Acquired(mut tx) =
        keys.begin(&key("k"), request("k"), &ClaimOptions::default()).await.unwrap()
    else {
        panic!()
    };
    DB::execute(&mut tx, "ROLLBACK").await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(run(&keys, "k").await, "acquired");
}

async fn a_transaction_that_was_ended_by_a_dropped_begin_stores_nothing<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let Claimed::Acquired(mut tx) =
        keys.begin(&key("k"), request("k"), &ClaimOptions::default()).await.unwrap()
    else {
        panic!()
    };
    DB::apply(&mut tx, String::from("k")).await.unwrap();
    tests::drop_a_begin(&mut **tx).await;
    let committed = tx.commit(Ending::Succeeded, b"x").await;
    assert!(matches!(committed, Err(CommitError::Ended)), "{committed:?}");
    // The lock is released when the connection is back in the pool.
    let ran = tests::eventually("the key is free", async || {
        let ran = run(&keys, "k").await;
        Ok((ran != "in_flight").then_some(ran))
    });
    assert_eq!((ran.await.unwrap(), effects(&db, "k").await), ("acquired", 1));
}

async fn a_lease_that_expired_is_taken_over_by_a_transaction<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let Claimed::Acquired(lease) = claim(&keys, "k", "k").await else { panic!() };
    assert_eq!(run(&keys, "k").await, "in_flight");
    db.execute(DB::LAPSE).await.unwrap();
    assert_eq!(run(&keys, "k").await, "acquired");
    assert!(lease.complete(Ending::Succeeded, b"late").await.unwrap_err().is_late());
    assert_eq!((run(&keys, "k").await, effects(&db, "k").await), ("replay", 1));
}

/// The takeover is rolled back with the effects, but the outcome still ends the key.
async fn what_was_taken_over_and_refused_is_stored_as_refused<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let Claimed::Acquired(lease) = claim(&keys, "k", "k").await else { panic!() };
    db.execute(DB::LAPSE).await.unwrap();
    let Claimed::Acquired(mut tx) =
        keys.begin(&key("k"), request("k"), &ClaimOptions::default()).await.unwrap()
    else {
        panic!()
    };
    DB::apply(&mut tx, String::from("k")).await.unwrap();
    tx.undo().await.unwrap();
    tx.commit(Ending::Failed, b"no").await.unwrap();
    let Claimed::Replay(replay) = claim(&keys, "k", "k").await else { panic!() };
    assert_eq!((replay.ending, &replay.outcome[..]), (Ending::Failed, &b"no"[..]));
    assert_eq!((column(&db, "k", "attempt").await, effects(&db, "k").await), (vec![String::from("2")], 0));
    assert!(lease.complete(Ending::Succeeded, b"late").await.unwrap_err().is_late());
}

async fn a_key_that_a_transaction_holds_is_in_flight(db: Database<Postgres>) {
    let keys = open(&db).await;
    let Claimed::Acquired(tx) = keys.begin(&key("k"), request("k"), &ClaimOptions::default()).await.unwrap()
    else {
        panic!()
    };
    assert_eq!(run(&keys, "k").await, "in_flight");
    assert!(matches!(claim(&keys, "k", "k").await, Claimed::InFlight { .. }));
    assert_eq!(run(&keys, "other").await, "acquired", "other keys are not held up");
    tx.commit(Ending::Succeeded, b"").await.unwrap();
    assert_eq!(run(&keys, "k").await, "replay");
}

/// Goal: a service whose `search_path` begins with another schema, and which names the schema of
/// the table, does not wait in the index for a key that another service holds. Oracle: the answer
/// comes while the key is held.
async fn a_key_has_one_lock_whatever_the_search_path(db: Database<Postgres>) {
    db.execute("CREATE SCHEMA elsewhere; GRANT USAGE ON SCHEMA elsewhere TO PUBLIC").await.unwrap();
    let keys = open(&db).await;
    let elsewhere = db.service.connect_options().as_ref().clone();
    let elsewhere = elsewhere.options([("search_path", "elsewhere,public")]);
    let elsewhere = sqlx::PgPool::connect_with(elsewhere).await.unwrap();
    let schema = db.texts("SELECT current_schema()::text").await.unwrap().remove(0);
    let options = KeyOptions::default().schema(Some(schema.parse().unwrap()));
    let others = IdempotencyKeys::open(elsewhere, options).await.unwrap();
    for (holding, other) in [(&keys, &others), (&others, &keys)] {
        let held = holding.begin(&key("k"), request("k"), &ClaimOptions::default()).await.unwrap();
        let Claimed::Acquired(tx) = held else { panic!("{held:?}") };
        let looked = tokio::time::timeout(Duration::from_mins(4), run(other, "k")).await;
        assert_eq!(looked, Ok("in_flight"));
        tx.rollback().await.unwrap();
    }
}

async fn what_has_ended_is_replayed_also_while_somebody_looks(db: Database<Postgres>) {
    let keys = open(&db).await;
    assert_eq!(run(&keys, "k").await, "acquired");
    let mut looking = db.admin.begin().await.unwrap();
    let hash = Fingerprint::of_parts("tenant-1", "POST /orders", b"k");
    let number = i64::from_be_bytes(hash.as_bytes()[..8].try_into().unwrap());
    let look = format!(
        "SELECT pg_advisory_xact_lock('{number}'::bigint # 'idempotency_key'::regclass::oid::bigint)"
    );
    let look = look.as_str();
    <Postgres as Dialect>::execute(&mut looking, look).await.unwrap();
    assert_eq!(run(&keys, "k").await, "replay");
    db.execute(Postgres::EXPIRE).await.unwrap();
    assert_eq!(run(&keys, "k").await, "in_flight", "it has the lock");
    looking.rollback().await.unwrap();
}

/// PostgreSQL aborts a transaction on any error, and answers its COMMIT with a silent rollback.
async fn a_swallowed_error_stores_nothing(db: Database<Postgres>) {
    let keys = open(&db).await;
    let Claimed::Acquired(mut tx) =
        keys.begin(&key("k"), request("k"), &ClaimOptions::default()).await.unwrap()
    else {
        panic!()
    };
    Postgres::apply(&mut tx, String::from("k")).await.unwrap();
    assert!(<Postgres as Dialect>::execute(&mut tx, "SELECT 1 / 0").await.is_err());
    let committed = tx.commit(Ending::Succeeded, b"x").await;
    assert!(matches!(committed, Err(CommitError::RolledBack { source: Some(_), .. })), "{committed:?}");
    // The transaction is rolled back in the background.
    tests::eventually("the key is free", async || Ok((run(&keys, "k").await == "acquired").then_some(())))
        .await
        .unwrap();
    assert_eq!(effects(&db, "k").await, 1);
}

async fn a_service_that_hangs_loses_its_key_after_the_lease(db: Database<Postgres>) {
    let keys = open(&db).await;
    let short = ClaimOptions::default().lease(Duration::from_secs(1));
    let Claimed::Acquired(mut hanging) = keys.begin(&key("k"), request("k"), &short).await.unwrap() else {
        panic!()
    };
    Postgres::apply(&mut hanging, String::from("k")).await.unwrap();
    tests::eventually("the key is free", async || Ok((run(&keys, "k").await == "acquired").then_some(())))
        .await
        .unwrap();
    assert!(hanging.commit(Ending::Succeeded, b"late").await.is_err());
    assert_eq!(effects(&db, "k").await, 1);
}

/// Oracle: the next request, on the only connection.
async fn a_claim_that_fails_leaves_no_failed_transaction_in_the_pool(db: Database<Postgres>) {
    let options = (*db.service.connect_options()).clone();
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    let keys = IdempotencyKeys::open(pool.clone(), KeyOptions::default()).await.unwrap();
    sqlx::raw_sql("SET default_transaction_read_only = on").execute(&pool).await.unwrap();
    assert!(keys.begin(&key("k"), request("k"), &ClaimOptions::default()).await.is_err());
    sqlx::raw_sql("SET default_transaction_read_only = off").execute(&pool).await.unwrap();
    assert_eq!(run(&keys, "k").await, "acquired");
    pool.close().await;
}
