//! Forgetting expired keys, and reporting holders that have disappeared.

use std::time::Duration;

use super::*;
use idempotency::OnExpired;
use message::MessageId;
use tests::Counters;

tests::cases! { "keys/forgetting/{on}/{case}":
    every {
        an_expired_key_is_free_whether_or_not_it_was_deleted,
        requests_that_race_over_the_boundary_take_effect_once,
        leases_that_race_over_the_boundary_are_granted_once,
        what_somebody_may_still_complete_is_not_forgotten,
        what_was_abandoned_is_forgotten_unless_an_operator_decides,
        a_late_ending_is_kept_for_the_whole_retention,
        a_clock_that_is_set_back_forgets_no_key_earlier,
        an_operation_keeps_its_keys_no_longer_than_the_handle_allows,
        expired_keys_are_deleted_in_batches_and_others_stay,
        an_open_handle_forgets_by_itself,
        an_expired_lease_is_reported_once_with_its_policy,
    }
    on_postgres { a_service_changes_and_removes_no_outcome_that_counts }
}

async fn an_expired_key_is_free_whether_or_not_it_was_deleted<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    assert_eq!(run(&keys, "k").await, "acquired");
    for is_deleted in [false, true] {
        assert_eq!(run(&keys, "k").await, "replay");
        db.execute(DB::EXPIRE).await.unwrap();
        if is_deleted {
            assert_eq!(keys.maintain().await.unwrap().forgotten, 1);
            assert_eq!(column(&db, "k", "key").await, [""; 0], "it is gone from the disk");
        }
        // The replay's transaction may still hold the lock of the key while it returns to the pool.
        let ran = tests::eventually("the replay lets go of the key", async || {
            let ran = run(&keys, "k").await;
            Ok((ran != "in_flight").then_some(ran))
        });
        assert_eq!(ran.await.unwrap(), "acquired", "deleted: {is_deleted}");
    }
    assert_eq!((run(&keys, "k").await, effects(&db, "k").await), ("replay", 3));
}

/// The number of races over the time of expiry, and how many run at once.
const RACES: usize = 400;
const RACES_AT_ONCE: usize = 20;

/// Each wave runs at once: two requests for each of twenty expired keys, and the deletion of these
/// keys.
async fn requests_that_race_over_the_boundary_take_effect_once<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    for wave in 0..RACES / RACES_AT_ONCE {
        for racer in 0..RACES_AT_ONCE {
            assert_eq!(run(&keys, &format!("{wave}-{racer}")).await, "acquired");
        }
        db.execute(DB::EXPIRE).await.unwrap();
        let racing: Vec<_> = (0..2 * RACES_AT_ONCE)
            .map(|racer| {
                let (keys, name) = (keys.clone(), format!("{wave}-{}", racer % RACES_AT_ONCE));
                tokio::spawn(async move { run(&keys, &name).await })
            })
            .collect();
        keys.maintain().await.unwrap();
        let mut acquired = 0;
        for racer in racing {
            acquired += usize::from(racer.await.unwrap() == "acquired");
        }
        assert_eq!(acquired, RACES_AT_ONCE, "wave {wave}");
    }
    let doubled = "SELECT count(*) FROM (SELECT 1 FROM effect GROUP BY payload HAVING count(*) <> 2) AS d";
    assert_eq!(db.integer(doubled).await.unwrap(), 0);
    assert_eq!(db.integer("SELECT count(*) FROM effect").await.unwrap(), 2 * RACES as i64);
}

async fn leases_that_race_over_the_boundary_are_granted_once<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    for round in 0..100 {
        let name = format!("round-{round}");
        let Claimed::Acquired(holder) = claim(&keys, &name, "a").await else { panic!() };
        holder.complete(Ending::Succeeded, b"done").await.unwrap();
        db.execute(DB::EXPIRE).await.unwrap();
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
        keys.maintain().await.unwrap();
        let mut granted = 0;
        for racer in racing {
            granted += racer.await.unwrap();
        }
        assert_eq!(granted, 1, "round {round}");
        assert_eq!(column(&db, &name, "state").await, ["succeeded"]);
    }
}

async fn what_somebody_may_still_complete_is_not_forgotten<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let Claimed::Acquired(holder) = claim(&keys, "k", "a").await else { panic!() };
    db.execute(DB::AGE).await.unwrap();
    db.execute(DB::AGE).await.unwrap();
    assert_eq!(keys.maintain().await.unwrap().forgotten, 0);
    assert!(matches!(claim(&keys, "k", "a").await, Claimed::InFlight { .. }));
    holder.complete(Ending::Succeeded, b"done").await.unwrap();
    assert_eq!(keys.maintain().await.unwrap().forgotten, 0);
    assert!(matches!(claim(&keys, "k", "a").await, Claimed::Replay(_)));
}

async fn what_was_abandoned_is_forgotten_unless_an_operator_decides<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let refuse = ClaimOptions::default().on_expired(OnExpired::Refuse);
    for (name, options) in [("abandoned", ClaimOptions::default()), ("kept", refuse)] {
        assert!(keys.claim(&key(name), request("a"), &options).await.unwrap().acquired().is_some());
    }
    db.execute(DB::LAPSE).await.unwrap();
    assert_eq!(keys.maintain().await.unwrap().forgotten, 0, "within its retention it tells its attempts");
    db.execute(DB::EXPIRE).await.unwrap();
    assert_eq!(keys.maintain().await.unwrap().forgotten, 1);
    assert!(matches!(claim(&keys, "kept", "a").await, Claimed::Stuck { .. }));
    let Claimed::Acquired(new) = claim(&keys, "abandoned", "b").await else { panic!() };
    assert_eq!(new.attempt(), 1, "a new key");
}

async fn a_late_ending_is_kept_for_the_whole_retention<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let Claimed::Acquired(holder) = claim(&keys, "k", "a").await else { panic!() };
    db.execute(DB::AGE).await.unwrap();
    holder.complete(Ending::Succeeded, b"done").await.unwrap();
    db.execute(DB::AGE).await.unwrap();
    assert!(matches!(claim(&keys, "k", "a").await, Claimed::Replay(_)), "23 of 24 hours");
    db.execute(DB::AGE).await.unwrap();
    assert!(matches!(claim(&keys, "k", "a").await, Claimed::Acquired(_)), "46 of 24 hours");
}

async fn an_operation_keeps_its_keys_no_longer_than_the_handle_allows<DB: Keys>(db: Database<DB>) {
    let hour = Duration::from_secs(3_600);
    let open = async |retention| {
        let options = KeyOptions::default().retention(retention);
        IdempotencyKeys::open(db.service.clone(), options).await
    };
    let week = open(168 * hour).await.unwrap();
    let day = open(24 * hour).await.unwrap();
    let long = ClaimOptions::default().retention(100 * hour);
    assert!(week.claim(&key("k"), request("a"), &long).await.is_ok());
    let refused = day.claim(&key("l"), request("a"), &long).await.unwrap_err().to_string();
    assert!(refused.contains("; choose 1m to 1d"), "{refused}");
    assert!(open(Duration::from_secs(1)).await.is_err());
}

async fn expired_keys_are_deleted_in_batches_and_others_stay<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    assert_eq!(run(&keys, "expired").await, "acquired");
    db.execute(DB::EXPIRE).await.unwrap();
    let copies = "INSERT INTO idempotency_key (scope, operation, key, fingerprint, state, attempt, holder, outcome, claimed_at, \
        processed_at, expires_at) WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 2500) \
        SELECT scope, operation, key || n, fingerprint, state, attempt, holder, outcome, claimed_at, processed_at, expires_at \
        FROM idempotency_key, n";
    db.execute(copies).await.unwrap();
    assert_eq!(run(&keys, "kept").await, "acquired");
    let maintained = keys.maintain().await.unwrap();
    assert_eq!((maintained.forgotten, maintained.leases_expired), (2_501, 0));
    assert_eq!(db.texts("SELECT key FROM idempotency_key").await.unwrap(), ["kept"]);
}

async fn an_open_handle_forgets_by_itself<DB: Keys>(db: Database<DB>) {
    let options = KeyOptions::default().maintain_every(Duration::from_secs(1));
    let keys = IdempotencyKeys::open(db.service.clone(), options).await.unwrap();
    assert_eq!(run(&keys, "k").await, "acquired");
    db.execute(DB::EXPIRE).await.unwrap();
    tests::eventually("it is forgotten", async || Ok(column(&db, "k", "key").await.is_empty().then_some(())))
        .await
        .unwrap();
}

async fn an_expired_lease_is_reported_once_with_its_policy<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let operation = format!("POST /{}", MessageId::new());
    let counted = |on_expired| {
        let labels = [("operation", operation.as_str()), ("on_expired", on_expired)];
        Counters::installed().value("idempotency_leases_expired_total", &labels)
    };
    // Counts the log lines with the key, its holder and the right level. An operator needs the
    // holder to find the process.
    let told = async |policy: &str| {
        let holder = format!("holder={}", column(&db, policy, "holder").await[0]);
        let level = if policy == "refuse" { " WARN " } else { " INFO " };
        let key = format!("key={policy} of t ({operation})");
        tests::log::lines_with(&[level, "the holder of an idempotency key has disappeared", &key, &holder])
            .len()
    };
    assert_eq!([counted("take_over"), counted("refuse")], [0, 0]);
    let mut claims = Vec::new();
    for on_expired in [OnExpired::TakeOver, OnExpired::Refuse] {
        let id = id("t", &operation, on_expired.as_str());
        let options = ClaimOptions::default().on_expired(on_expired);
        claims.push(keys.claim(&id, request("a"), &options).await.unwrap().acquired().unwrap());
    }
    assert_eq!(keys.maintain().await.unwrap().leases_expired, 0, "both may be alive");
    assert_eq!([told("take_over").await, told("refuse").await], [0, 0]);
    db.execute(DB::LAPSE).await.unwrap();
    assert_eq!(keys.maintain().await.unwrap().leases_expired, 2);
    assert_eq!(keys.maintain().await.unwrap().leases_expired, 0, "once");
    assert_eq!([counted("take_over"), counted("refuse")], [1, 1]);
    assert_eq!([told("take_over").await, told("refuse").await], [1, 1]);
    let stuck = keys.stuck(std::num::NonZeroU32::MAX).await.unwrap();
    for claim in &claims {
        let found = stuck.iter().find(|stuck| stuck.id == *claim.id()).unwrap();
        assert_eq!(found.on_expired, claim.on_expired());
    }
    // A holder that was renewed can be lost again.
    claims[0].renew().await.unwrap();
    db.execute(DB::LAPSE).await.unwrap();
    assert_eq!(keys.maintain().await.unwrap().leases_expired, 1);
    assert_eq!((counted("take_over"), told("take_over").await), (2, 2));
}

/// Goal: a key is kept as long as its first answer promised, although the clock is set back before
/// it is renewed, ends, is taken over, or is claimed again. Oracle: no row expires earlier than
/// before.
async fn a_clock_that_is_set_back_forgets_no_key_earlier<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let options = ClaimOptions::default().on_expired(OnExpired::TakeOver);
    let claimed = async |name: &str| {
        let claimed = keys.claim(&key(name), request(name), &options).await.unwrap();
        let Claimed::Acquired(claim) = claimed else { panic!("{name}: {}", claimed.as_str()) };
        claim
    };
    let renewed = claimed("renewed").await;
    let ended = claimed("ended").await;
    let _lost = claimed("taken over").await;
    claimed("again").await.release().await.unwrap();
    db.execute(DB::SET_BACK).await.unwrap();
    db.execute("CREATE TABLE promised AS SELECT key, expires_at FROM idempotency_key").await.unwrap();

    renewed.renew().await.unwrap();
    ended.complete(Ending::Succeeded, b"done").await.unwrap();
    db.execute(DB::LAPSE).await.unwrap();
    let _taken = claimed("taken over").await;
    assert_eq!(run(&keys, "again").await, "acquired");
    let earlier = "SELECT k.key FROM idempotency_key AS k JOIN promised AS p ON p.key = k.key \
        WHERE k.expires_at < p.expires_at ORDER BY k.key";
    let mut connection = db.admin.acquire().await.unwrap();
    assert_eq!(DB::texts(&mut connection, earlier).await.unwrap(), [""; 0]);
    assert_eq!(db.integer("SELECT count(*) FROM idempotency_key").await.unwrap(), 4);
}

/// A service runs its own statements with its own rights.
async fn a_service_changes_and_removes_no_outcome_that_counts(db: Database<Postgres>) {
    let keys = open(&db).await;
    assert_eq!(run(&keys, "k").await, "acquired");
    let Claimed::Acquired(_holder) = claim(&keys, "running", "a").await else { panic!() };
    const REMOVE: &str = "DELETE FROM idempotency_key";
    for sql in [
        "UPDATE idempotency_key SET outcome = 'other' WHERE key = 'k'",
        "UPDATE idempotency_key SET expires_at = claimed_at WHERE key = 'k'",
        "UPDATE idempotency_key SET state = 'released', expires_at = claimed_at WHERE key = 'running'",
        "DELETE FROM idempotency_key WHERE key = 'k'",
        "DELETE FROM idempotency_key WHERE key = 'running'",
    ] {
        let refused = sqlx::query(sql).execute(&db.service).await.expect_err(sql);
        let code =
            refused.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned();
        assert_eq!(code, "42501", "{sql}: {refused}");
    }
    assert_eq!(run(&keys, "k").await, "replay");
    db.execute(Postgres::EXPIRE).await.unwrap();
    let all = sqlx::query(REMOVE).execute(&db.service).await;
    assert!(all.is_err(), "a key in progress stays, whenever it expires");
    let ended = format!("{REMOVE} WHERE state <> 'in_progress'");
    let removed = sqlx::query(sqlx::AssertSqlSafe(ended)).execute(&db.service).await.unwrap();
    assert_eq!(removed.rows_affected(), 1, "only what has ended and expired");
}
