//! Keys that are held on a lease.

use std::num::NonZeroU32;
use std::task::Poll;
use std::time::Duration;

use super::*;
use idempotency::{Action, CompleteError, OnExpired};
use inbox::Signature;

/// Default lease.
const LEASE_DEFAULT: Duration = Duration::from_secs(60);
/// Maximum lease.
const LEASE_MAX: Duration = Duration::from_secs(86_400);

tests::cases! { "keys/lease/{on}/{case}":
    every {
        a_request_is_claimed_once_then_in_flight_then_replayed,
        another_request_under_the_key_is_a_conflict,
        racing_claims_are_granted_once,
        an_expired_lease_is_taken_over_and_the_late_holder_is_told,
        a_late_holder_that_nobody_succeeded_may_complete,
        a_renewed_lease_is_not_taken_over,
        a_key_given_back_is_free_at_once,
        a_stuck_key_waits_for_the_operator,
        a_lease_from_a_clock_that_was_days_ahead_is_left_to_the_operator,
        a_claim_whose_caller_is_gone_is_given_back,
        a_claim_whose_caller_goes_with_the_answer_at_hand_is_given_back,
        every_scope_operation_and_key_is_its_own_request,
        an_expired_outcome_frees_the_key_and_fences_its_old_holder,
    }
    on_postgres { the_roles_isolation_level_does_not_matter }
}

async fn a_request_is_claimed_once_then_in_flight_then_replayed<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let Claimed::Acquired(holder) = claim(&keys, "k", "a").await else { panic!() };
    assert_eq!((holder.attempt(), holder.id()), (1, &key("k")));
    let Claimed::InFlight { retry_after } = claim(&keys, "k", "a").await else { panic!() };
    assert!(retry_after.as_secs() > 30 && retry_after <= LEASE_DEFAULT, "{retry_after:?}");
    let ended_at = holder.complete(Ending::Succeeded, b"\x00\xffdone").await.unwrap();
    // Another process, with its own handle.
    let keys = open(&db).await;
    for _ in 0..2 {
        let Claimed::Replay(replay) = claim(&keys, "k", "a").await else { panic!() };
        assert_eq!((replay.ending, &replay.outcome[..]), (Ending::Succeeded, &b"\x00\xffdone"[..]));
        assert_eq!(replay.processed_at, ended_at, "the original time comes back every time");
    }
    let Claimed::Acquired(refused) = claim(&keys, "refused", "a").await else { panic!() };
    refused.complete(Ending::Failed, b"no").await.unwrap();
    let Claimed::Replay(replay) = claim(&keys, "refused", "a").await else { panic!() };
    assert_eq!((replay.ending, &replay.outcome[..]), (Ending::Failed, &b"no"[..]));
}

async fn another_request_under_the_key_is_a_conflict<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let Claimed::Acquired(holder) = claim(&keys, "k", "a").await else { panic!() };
    let in_progress = claim(&keys, "k", "b").await;
    holder.complete(Ending::Succeeded, b"").await.unwrap();
    for conflict in [in_progress, claim(&keys, "k", "b").await] {
        assert!(matches!(conflict, Claimed::Conflict { stored } if stored == request("a")), "{conflict:?}");
    }
}

async fn racing_claims_are_granted_once<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    for round in 0..20 {
        let name = format!("race-{round}");
        let racing: Vec<_> = (0..16)
            .map(|_| {
                let (keys, name) = (keys.clone(), name.clone());
                tokio::spawn(async move { claim(&keys, &name, "a").await })
            })
            .collect();
        let mut granted = 0;
        for racer in racing {
            match racer.await.unwrap() {
                Claimed::Acquired(_) => granted += 1,
                Claimed::InFlight { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(granted, 1, "round {round}");
    }
}

async fn an_expired_lease_is_taken_over_and_the_late_holder_is_told<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let Claimed::Acquired(first) = claim(&keys, "k", "a").await else { panic!() };
    let Claimed::Acquired(slow) = claim(&keys, "slow", "a").await else { panic!() };
    db.execute(DB::LAPSE).await.unwrap();
    let Claimed::Acquired(second) = claim(&keys, "k", "a").await else { panic!() };
    assert_eq!(second.attempt(), 2, "greater than every earlier holder's");
    let late = first.complete(Ending::Failed, b"late").await;
    assert!(matches!(late, Err(CompleteError::TakenOver { attempt: 2 })), "{late:?}");
    second.complete(Ending::Succeeded, b"second").await.unwrap();
    let Claimed::Replay(replay) = claim(&keys, "k", "a").await else { panic!() };
    assert_eq!(&replay.outcome[..], b"second", "the late holder has changed nothing");

    let Claimed::Acquired(third) = claim(&keys, "slow", "a").await else { panic!() };
    third.complete(Ending::Succeeded, b"third").await.unwrap();
    let late = slow.complete(Ending::Succeeded, b"late").await;
    assert!(matches!(late, Err(CompleteError::Ended { ending: Ending::Succeeded, .. })), "{late:?}");
}

async fn a_late_holder_that_nobody_succeeded_may_complete<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let Claimed::Acquired(holder) = claim(&keys, "k", "a").await else { panic!() };
    db.execute(DB::LAPSE).await.unwrap();
    holder.complete(Ending::Succeeded, b"done").await.unwrap();
    assert!(matches!(claim(&keys, "k", "a").await, Claimed::Replay(_)));
}

async fn a_renewed_lease_is_not_taken_over<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let Claimed::Acquired(holder) = claim(&keys, "k", "a").await else { panic!() };
    db.execute(DB::LAPSE).await.unwrap();
    holder.renew().await.unwrap();
    assert!(matches!(claim(&keys, "k", "a").await, Claimed::InFlight { .. }));
    db.execute(DB::LAPSE).await.unwrap();
    let Claimed::Acquired(second) = claim(&keys, "k", "a").await else { panic!() };
    assert!(holder.renew().await.unwrap_err().is_late());
    second.renew().await.unwrap();
}

async fn a_key_given_back_is_free_at_once<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let Claimed::Acquired(holder) = claim(&keys, "k", "a").await else { panic!() };
    holder.release().await.unwrap();
    assert!(matches!(claim(&keys, "k", "b").await, Claimed::Conflict { .. }), "it still names its request");
    let Claimed::Acquired(holder) = claim(&keys, "k", "a").await else { panic!() };
    assert_eq!(holder.attempt(), 2);
}

/// Goal: a lease that was granted while the server's clock was days ahead is not kept for days. A
/// live holder's next renewal corrects it; if the holder has disappeared, an operator decides. No
/// caller takes over the key on its own. Oracle: the list, the answers to another caller, the
/// decision.
async fn a_lease_from_a_clock_that_was_days_ahead_is_left_to_the_operator<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let some = NonZeroU32::new(10).unwrap();
    let operator = IdempotencyKeys::open(db.admin.clone(), KeyOptions::default()).await.unwrap();
    let signed = Signature { actor: "alice".into(), note: "asked the bank".into(), selection: None };
    let Claimed::Acquired(holder) = claim(&keys, "k", "a").await else { panic!() };
    db.execute(DB::AHEAD).await.unwrap();
    holder.renew().await.unwrap();
    assert_eq!(operator.stuck(some).await.unwrap(), [], "its holder is alive");
    let Claimed::InFlight { retry_after } = claim(&keys, "k", "a").await else { panic!() };
    assert!(retry_after <= LEASE_DEFAULT, "{retry_after:?}");

    db.execute(DB::AHEAD).await.unwrap();
    drop(holder);
    let Claimed::InFlight { retry_after } = claim(&keys, "k", "a").await else { panic!() };
    assert!(retry_after <= LEASE_MAX, "{retry_after:?}");
    let stuck = operator.stuck(some).await.unwrap();
    let found: Vec<_> = stuck.iter().map(|stuck| stuck.id.key().as_str()).collect();
    assert_eq!(found, ["k"]);
    let decided = operator.decide(&key("k"), Some(stuck[0].holder), Action::Release, &signed).await;
    assert!(decided.unwrap(), "it is stuck");
    let Claimed::Acquired(second) = claim(&keys, "k", "a").await else { panic!() };
    assert_eq!(second.attempt(), 2);
}

async fn a_stuck_key_waits_for_the_operator<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let refuse = ClaimOptions::default().on_expired(OnExpired::Refuse);
    let claim = async |name: &str| keys.claim(&key(name), request("a"), &refuse).await.unwrap();
    let some = NonZeroU32::new(10).unwrap();
    for name in ["again", "never"] {
        let Claimed::Acquired(holder) = claim(name).await else { panic!() };
        drop(holder);
    }
    assert_eq!(keys.stuck(some).await.unwrap(), [], "a holder that may be alive is not stuck");
    // A decision needs more rights than a service has.
    let operator = IdempotencyKeys::open(db.admin.clone(), KeyOptions::default()).await.unwrap();
    let signed =
        |actor: &str| Signature { actor: actor.into(), note: "asked the bank".into(), selection: None };
    let decide = async |name: &str, holder, action, actor: &str| {
        operator.decide(&key(name), holder, action, &signed(actor)).await.unwrap()
    };
    assert!(!decide("again", None, Action::Release, "alice").await, "nor decided about");
    db.execute(DB::LAPSE).await.unwrap();
    assert!(matches!(claim("again").await, Claimed::Stuck { .. }));
    let stuck = operator.stuck(some).await.unwrap();
    let found: Vec<_> = stuck.iter().map(|stuck| stuck.id.key().as_str()).collect();
    assert!(found.len() == 2 && found.contains(&"again") && found.contains(&"never"), "{stuck:?}");

    let other = Some(uuid::Uuid::now_v7());
    assert!(!decide("again", other, Action::Discard, "bob").await, "somebody else has held it since");
    let holder = stuck.iter().find(|stuck| stuck.id.key().as_str() == "again").map(|stuck| stuck.holder);
    assert!(decide("again", holder, Action::Release, "alice").await);
    assert!(decide("never", None, Action::Discard, "alice").await);
    assert!(!decide("never", None, Action::Release, "bob").await, "a decision is final");
    assert_eq!(column(&db, "never", "decided_by").await, ["alice"]);
    let audit = operator.decisions(some).await.unwrap();
    let told: Vec<_> =
        audit.iter().map(|it| (it.subject.key().as_str(), it.action, it.signature.clone())).collect();
    let by_alice = |key, action| (key, action, Signature::new("alice", "asked the bank"));
    assert_eq!(told, [by_alice("never", Action::Discard), by_alice("again", Action::Release)]);
    assert!(matches!(claim("never").await, Claimed::Discarded { .. }));
    let Claimed::Acquired(holder) = claim("again").await else { panic!() };
    assert_eq!(holder.attempt(), 2);
    assert_eq!(operator.stuck(some).await.unwrap(), []);
}

/// The future of a claim is dropped at its first await, many times: no key stays held.
async fn a_claim_whose_caller_is_gone_is_given_back<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let mut gone = 0;
    for round in 0..40 {
        let name = format!("gone-{round}");
        let id = key(&name);
        let options = ClaimOptions::default();
        let mut claiming = Box::pin(keys.claim(&id, request("a"), &options));
        // Sometimes the database answers before the first poll: then the claim is not dropped.
        if let Poll::Ready(claimed) = futures_util::poll!(&mut claiming) {
            claimed.unwrap().acquired().expect("nobody else asks for it").release().await.unwrap();
            continue;
        }
        drop(claiming);
        gone += 1;
        tests::eventually("the key is free", async || {
            Ok(claim(&keys, &name, "a").await.acquired().map(drop))
        })
        .await
        .unwrap();
    }
    assert!(gone >= 10, "only {gone} of 40 callers were gone");
}

/// Goal: a caller that is dropped after its claim was granted, but before it has received it,
/// leaves no key in flight. Oracle: the row is in progress before the drop; afterwards another
/// caller gets the key.
async fn a_claim_whose_caller_goes_with_the_answer_at_hand_is_given_back<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let refuse = ClaimOptions::default().on_expired(OnExpired::Refuse);
    let mut gone = 0;
    for round in 0..5 {
        let name = format!("gone-{round}");
        let id = key(&name);
        let mut claiming = Box::pin(keys.claim(&id, request("a"), &refuse));
        if futures_util::poll!(&mut claiming).is_ready() {
            continue;
        }
        tests::eventually("the key is claimed", async || {
            Ok((column(&db, &name, "state").await == ["in_progress"]).then_some(()))
        })
        .await
        .unwrap();
        // The answer to the commit is on its way to the caller. Much less than the lease.
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(claiming);
        gone += 1;
        tests::eventually("the key is free", async || {
            Ok(claim(&keys, &name, "a").await.acquired().map(drop))
        })
        .await
        .unwrap();
    }
    assert!(gone > 0, "every caller had its answer at once");
}

async fn every_scope_operation_and_key_is_its_own_request<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let options = ClaimOptions::default();
    let names = ["a", "b", "ab", "a:b", "1:a"];
    let mut all = Vec::new();
    for scope in names {
        for operation in names {
            all.extend(names.map(|key| id(scope, operation, key)));
        }
    }
    for id in &all {
        let Claimed::Acquired(holder) = keys.claim(id, request("x"), &options).await.unwrap() else {
            panic!("{id} is another one's");
        };
        let outcome = format!("{}|{}|{}", id.tenant(), id.operation(), id.key());
        holder.complete(Ending::Succeeded, outcome.as_bytes()).await.unwrap();
    }
    for id in &all {
        let Claimed::Replay(replay) = keys.claim(id, request("x"), &options).await.unwrap() else { panic!() };
        let own = format!("{}|{}|{}", id.tenant(), id.operation(), id.key());
        assert_eq!(replay.outcome, own, "another one's answer");
    }
}

async fn an_expired_outcome_frees_the_key_and_fences_its_old_holder<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let Claimed::Acquired(old) = claim(&keys, "k", "a").await else { panic!() };
    db.execute(DB::LAPSE).await.unwrap();
    let Claimed::Acquired(other) = claim(&keys, "k", "a").await else { panic!() };
    other.complete(Ending::Succeeded, b"first life").await.unwrap();
    db.execute(DB::EXPIRE).await.unwrap();
    let Claimed::Acquired(anew) = claim(&keys, "k", "another request").await else { panic!() };
    assert!(old.complete(Ending::Succeeded, b"late").await.unwrap_err().is_late());
    anew.complete(Ending::Succeeded, b"second life").await.unwrap();
    let Claimed::Replay(replay) = claim(&keys, "k", "another request").await else { panic!() };
    assert_eq!(&replay.outcome[..], b"second life");
}

async fn the_roles_isolation_level_does_not_matter(db: Database<Postgres>) {
    let options = (*db.service.connect_options()).clone();
    let options = options.options([("default_transaction_isolation", "serializable")]);
    let pool = sqlx::PgPool::connect_with(options).await.unwrap();
    let keys = IdempotencyKeys::open(pool.clone(), KeyOptions::default()).await.unwrap();
    assert!(matches!(claim(&keys, "l", "a").await, Claimed::Acquired(_)));
    assert_eq!(run(&keys, "k").await, "acquired");
    assert_eq!(run(&keys, "k").await, "replay");
    pool.close().await;
}
