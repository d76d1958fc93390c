//! Forgetting: a slot at a time, and no request runs twice because of it.

use std::time::Duration;

use super::*;

key_cases! { "keys/rotation":
    every {
        a_key_outlives_two_rotations_and_not_three,
        requests_that_race_over_the_boundary_take_effect_once,
        leases_that_race_over_the_boundary_are_granted_once,
        what_nobody_completed_is_carried_over,
        a_late_ending_is_kept_for_the_whole_retention,
        the_retention_only_grows,
        a_claim_rotates_when_it_is_time,
    }
    postgres {
        no_rotation_comes_between_the_look_and_the_outcome,
        rotating_costs_the_same_however_many_keys_go,
    }
}

async fn rotate<DB: Keys>(db: &Database<DB>, keys: &IdempotencyKeys<DB>) {
    db.execute(DB::MAKE_ROTATION_DUE).await.unwrap();
    assert!(keys.maintain().await.unwrap(), "it is due");
    assert!(!keys.maintain().await.unwrap(), "once");
}

/// Two, because a rotation is due after half the retention.
async fn a_key_outlives_two_rotations_and_not_three<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    assert_eq!(run(&keys, "k").await, "acquired");
    for _ in 0..2 {
        rotate(&db, &keys).await;
        assert_eq!(run(&keys, "k").await, "replay");
    }
    rotate(&db, &keys).await;
    assert_eq!(column(&db, "k", "key").await, [""; 0], "it is gone from the disk");
    assert_eq!(run(&keys, "k").await, "acquired");
}

/// Races over the boundary, and how many of them over one rotation.
const RACES: usize = 1_000;
const RACES_AT_ONCE: usize = 10;

/// Each wave: two requests for each of ten keys, and a rotation, all at once.
async fn requests_that_race_over_the_boundary_take_effect_once<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let mut rotations = 0;
    for wave in 0..RACES / RACES_AT_ONCE {
        db.execute(DB::MAKE_ROTATION_DUE).await.unwrap();
        let racing: Vec<_> = (0..2 * RACES_AT_ONCE)
            .map(|racer| {
                let (keys, name) = (keys.clone(), format!("{wave}-{}", racer % RACES_AT_ONCE));
                tokio::spawn(async move { run(&keys, &name).await })
            })
            .collect();
        // Open transactions may be in its way.
        rotations += usize::from(keys.maintain().await.unwrap_or(false));
        let mut acquired = 0;
        for racer in racing {
            acquired += usize::from(racer.await.unwrap() == "acquired");
        }
        assert_eq!(acquired, RACES_AT_ONCE, "wave {wave}");
    }
    let generations = db.integer("SELECT generation FROM idempotency_ring").await.unwrap();
    assert!(
        generations > (RACES / RACES_AT_ONCE / 4) as i64,
        "{generations} rotations, {rotations} of them here"
    );
    let doubled = "SELECT count(*) FROM (SELECT 1 FROM effect GROUP BY payload HAVING count(*) > 1) AS d";
    assert_eq!(db.integer(doubled).await.unwrap(), 0);
    assert_eq!(db.integer("SELECT count(*) FROM effect").await.unwrap(), RACES as i64);
}

async fn leases_that_race_over_the_boundary_are_granted_once<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    for round in 0..100 {
        let name = format!("round-{round}");
        db.execute(DB::MAKE_ROTATION_DUE).await.unwrap();
        let racing: Vec<_> = (0..4)
            .map(|_| {
                let (keys, name) = (keys.clone(), name.clone());
                tokio::spawn(async move {
                    let Claimed::Acquired(holder) = claim(&keys, &name, "a").await else { return 0 };
                    holder.complete(Ending::Succeeded, b"done").await.unwrap();
                    1
                })
            })
            .collect();
        let _in_the_way = keys.maintain().await;
        let mut granted = 0;
        for racer in racing {
            granted += racer.await.unwrap();
        }
        assert_eq!(granted, 1, "round {round}");
        assert_eq!(column(&db, &name, "state").await, ["succeeded"], "in one slot only");
    }
}

async fn what_nobody_completed_is_carried_over<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let Claimed::Acquired(holder) = claim(&keys, "k", "a").await else { panic!() };
    for _ in 0..7 {
        rotate(&db, &keys).await;
        assert!(matches!(claim(&keys, "k", "a").await, Claimed::InFlight { .. }));
    }
    holder.complete(Ending::Succeeded, b"done").await.unwrap();
    assert!(matches!(claim(&keys, "k", "a").await, Claimed::Replay(_)));
}

async fn a_late_ending_is_kept_for_the_whole_retention<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let Claimed::Acquired(holder) = claim(&keys, "k", "a").await else { panic!() };
    rotate(&db, &keys).await;
    rotate(&db, &keys).await;
    holder.complete(Ending::Succeeded, b"done").await.unwrap();
    for _ in 0..2 {
        rotate(&db, &keys).await;
        assert!(matches!(claim(&keys, "k", "a").await, Claimed::Replay(_)));
    }
}

async fn the_retention_only_grows<DB: Keys>(db: Database<DB>) {
    let hour = Duration::from_secs(3_600);
    let open = async |retention| {
        let options = KeyOptions { retention, ..KeyOptions::default() };
        IdempotencyKeys::open(db.service.clone(), options).await
    };
    let week = open(168 * hour).await.unwrap();
    let day = open(24 * hour).await.unwrap();
    let long = ClaimOptions::default().retention(100 * hour);
    assert!(week.claim(&key("k"), request("a"), &long).await.is_ok());
    let refused = day.claim(&key("l"), request("a"), &long).await.unwrap_err().to_string();
    assert!(refused.contains("out of bounds; choose 60s to 86400s"), "{refused}");
    assert!(open(Duration::from_secs(1)).await.is_err());
    let back = match DB::BACKEND {
        Backend::Postgres => "UPDATE idempotency_ring SET started_at = now() - interval '13 hours'",
        _ => "UPDATE idempotency_ring SET started_at = started_at - 13 * 3600000000",
    };
    db.execute(back).await.unwrap();
    assert!(!day.maintain().await.unwrap(), "half of the longest retention has not passed");
}

async fn a_claim_rotates_when_it_is_time<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    db.execute(DB::MAKE_ROTATION_DUE).await.unwrap();
    drop(claim(&keys, "k", "a").await);
    tests::eventually("it has rotated", async || {
        Ok((db.integer("SELECT generation FROM idempotency_ring").await? == 1).then_some(()))
    })
    .await
    .unwrap();
}

/// Else the outcome would go into a slot that is not the newest any more, and be forgotten early.
async fn no_rotation_comes_between_the_look_and_the_outcome(db: Database<Postgres>) {
    let keys = open(&db).await;
    let options = ClaimOptions::default();
    let Claimed::Acquired(tx) = keys.begin(&key("k"), request("k"), &options).await.unwrap() else {
        panic!()
    };
    db.execute(Postgres::MAKE_ROTATION_DUE).await.unwrap();
    let in_the_way = keys.maintain().await.unwrap_err();
    assert!(in_the_way.to_string().contains("forget expired idempotency keys"), "{in_the_way}");
    tx.commit(Ending::Succeeded, b"").await.unwrap();
    assert_eq!(column(&db, "k", "slot").await, ["0"]);
    assert!(keys.maintain().await.unwrap(), "nothing is in its way any more");
    assert_eq!(run(&keys, "l").await, "acquired");
    assert_eq!(column(&db, "l", "slot").await, ["1"]);
}

/// Measured in what the database writes down about it.
async fn rotating_costs_the_same_however_many_keys_go(db: Database<Postgres>) {
    let keys = open(&db).await;
    let mut written = Vec::new();
    for count in [100, 50_000] {
        db.execute(&format!(
            "INSERT INTO idempotency_key (slot, scope, operation, key, fingerprint, state, attempt, holder, outcome,
                claimed_at, processed_at, expires_at)
             SELECT (generation + 1) % 3, 's', 'o', n::text, sha256('x'), 'succeeded', 1, gen_random_uuid(), 'x', now(), now(),
                now() FROM generate_series(1, {count}) AS n, idempotency_ring"
        ))
        .await
        .unwrap();
        db.execute(Postgres::MAKE_ROTATION_DUE).await.unwrap();
        db.execute("CHECKPOINT").await.unwrap();
        let before = db.integer("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").await.unwrap();
        assert!(keys.maintain().await.unwrap());
        let after = db.integer("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").await.unwrap();
        written.push(after - before);
        assert_eq!(db.integer("SELECT count(*) FROM idempotency_key").await.unwrap(), 0);
    }
    println!("WAL bytes of a rotation over 100 and 50,000 keys: {written:?}");
    // One row of these is 100 bytes and more; other tests write beside this one.
    assert!(written[1] < 2_000_000, "{written:?}");
}
