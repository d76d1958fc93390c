//! Keys that are tokens: a request whose record may have expired is refused instead of run again.

use std::time::Duration;

use super::*;
use idempotency::{Action, ClaimError, OnExpired};
use inbox::Signature;
use message::token::Drift;
use message::{Fault, MessageId};
use tests::Counters;
use time::OffsetDateTime;

tests::cases! { "keys/tokens/{on}/{case}":
    every {
        a_token_outside_the_window_is_refused_with_both_times_and_counted,
        a_record_answers_whatever_the_tokens_time,
        a_record_lets_its_request_run_whatever_the_tokens_time,
        a_key_without_a_time_is_refused_where_tokens_are_asked_for,
    }
}

const HOUR: Duration = Duration::from_secs(3_600);
const SKEW: Duration = Duration::from_secs(300);

fn made_at(at: OffsetDateTime) -> MessageId {
    MessageId::derived(at, [MessageId::new().as_uuid().as_bytes()]).unwrap()
}

fn tokens() -> ClaimOptions {
    ClaimOptions::default().tokens(SKEW)
}

async fn a_token_outside_the_window_is_refused_with_both_times_and_counted<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let now = OffsetDateTime::now_utc();
    let operation = format!("POST /tokens/{}", MessageId::new());
    let counted = |result| {
        let labels = [("operation", operation.as_str()), ("result", result)];
        Counters::installed().value("idempotency_claims_total", &labels)
    };
    let named = |token: MessageId| id("tenant-1", &operation, &token.to_string());
    assert_eq!(counted("acquired"), 0);
    // A request without a record may have run before if its token is older than 24 hours minus the
    // skew.
    for (token, reason) in [(made_at(now - 24 * HOUR), "too_old"), (made_at(now + HOUR), "too_far_ahead")] {
        // A record of the first request would let the second one run.
        let leased = keys.claim(&named(token), request("a"), &tokens()).await.map(drop).unwrap_err();
        let held = keys.begin(&named(token), request("a"), &tokens()).await.map(drop).unwrap_err();
        for error in [leased, held] {
            assert_eq!(error.fault(), Fault::Message);
            let ClaimError::Drift(drift) = &error else { panic!("{error}") };
            assert_eq!(drift.as_str(), reason);
            let (Drift::TooOld { oldest_accepted_at: other, .. }
            | Drift::TooFarAhead { newest_accepted_at: other, .. }) = drift;
            let told = error.to_string();
            assert!(
                told.contains(&token.generated_at().to_string()) && told.contains(&other.to_string()),
                "{told}"
            );
        }
        assert_eq!(counted(reason), 2);
        // No record is left that would make others wait.
        let free = keys.claim(&named(token), request("a"), &ClaimOptions::default()).await.unwrap();
        assert!(matches!(free, Claimed::Acquired(_)), "{free:?}");
    }
    for inside in [made_at(now - 23 * HOUR), made_at(now), made_at(now + SKEW / 2)] {
        let claimed = keys.begin(&named(inside), request("a"), &tokens()).await.unwrap();
        assert!(matches!(claimed, Claimed::Acquired(_)), "{claimed:?}");
    }
}

async fn a_record_answers_whatever_the_tokens_time<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let token = made_at(OffsetDateTime::now_utc() - 2 * HOUR).to_string();
    let Claimed::Acquired(claim) = keys.claim(&key(&token), request("a"), &tokens()).await.unwrap() else {
        panic!()
    };
    let narrow = tokens().retention(HOUR);
    let in_flight = keys.claim(&key(&token), request("a"), &narrow).await.unwrap();
    assert!(matches!(in_flight, Claimed::InFlight { .. }), "{in_flight:?}");
    claim.complete(Ending::Succeeded, b"done").await.unwrap();
    for options in [tokens(), narrow] {
        let replay = keys.begin(&key(&token), request("a"), &options).await.unwrap();
        assert!(matches!(replay, Claimed::Replay(_)), "{replay:?}");
    }
    // Without the record, it is unknown whether the request ran.
    db.execute(DB::EXPIRE).await.unwrap();
    let refused = loop {
        match keys.begin(&key(&token), request("a"), &narrow).await {
            // The transaction of the last replay is still being rolled back.
            Ok(Claimed::InFlight { .. }) => tokio::task::yield_now().await,
            answer => break answer.map(drop).unwrap_err(),
        }
    };
    assert!(matches!(refused, ClaimError::Drift(Drift::TooOld { .. })), "{refused}");
}

/// Goal: a request that has a record runs however old its token is, because its record is complete:
/// when an operator has released its key, and when its lease has expired under a policy that runs
/// it again. Oracle: the attempt that is granted, on a lease and in a transaction.
async fn a_record_lets_its_request_run_whatever_the_tokens_time<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    let operator = IdempotencyKeys::open(db.admin.clone(), KeyOptions::default()).await.unwrap();
    let signed = Signature { actor: "alice".into(), note: "not charged".into(), selection: None };
    let old = || made_at(OffsetDateTime::now_utc() - 2 * HOUR).to_string();
    let (released, lapsed) = (old(), old());
    for (token, policy) in [(&released, OnExpired::Refuse), (&lapsed, OnExpired::TakeOver)] {
        let claimed = keys.claim(&key(token), request("a"), &tokens().on_expired(policy)).await.unwrap();
        assert!(matches!(claimed, Claimed::Acquired(_)), "{claimed:?}");
    }
    db.execute(DB::LAPSE).await.unwrap();
    let decided = operator.decide(&key(&released), None, Action::Release, &signed).await;
    assert!(decided.unwrap(), "its lease has expired");
    // By now, both tokens are older than the retention.
    let narrow = tokens().retention(HOUR);
    for token in [&released, &lapsed] {
        let tx = keys.begin(&key(token), request("a"), &narrow).await.unwrap();
        let Claimed::Acquired(tx) = tx else { panic!("{tx:?}") };
        assert_eq!(tx.attempt(), 2);
        tx.rollback().await.unwrap();
        let claimed = keys.claim(&key(token), request("a"), &narrow).await.unwrap();
        let Claimed::Acquired(claim) = claimed else { panic!("{claimed:?}") };
        assert_eq!(claim.attempt(), 2);
        claim.complete(Ending::Succeeded, b"done").await.unwrap();
    }
}

async fn a_key_without_a_time_is_refused_where_tokens_are_asked_for<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    for name in ["8e03978e", "0b3c1f6e-6a8b-4c1e-9f63-1d2f0a9b7c55"] {
        let refused = keys.claim(&key(name), request("a"), &tokens()).await.map(drop).unwrap_err();
        assert!(matches!(refused, ClaimError::NotAToken(_)), "{refused}");
        assert!(refused.fault() == Fault::Message && refused.to_string().contains(name), "{refused}");
        let claimed = keys.claim(&key(name), request("a"), &ClaimOptions::default()).await.unwrap();
        assert!(matches!(claimed, Claimed::Acquired(_)), "{claimed:?}");
    }
    let unbounded = tokens().retention(SKEW);
    let refused = keys.claim(&key("k"), request("a"), &unbounded).await.map(drop).unwrap_err();
    assert!(matches!(refused, ClaimError::Option(_)), "{refused}");
}
