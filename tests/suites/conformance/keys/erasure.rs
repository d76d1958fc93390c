//! Erasing answers: they go, and no request runs again.

use super::*;
use idempotency::KeysOfName;

tests::cases! { "keys/erasure/{on}/{case}":
    every {
        an_erased_key_answers_nothing_and_runs_nothing,
        keys_are_found_by_their_account_and_by_themselves,
    }
    on_postgres { a_service_has_no_right_to_erase }
}

/// Opens keys as the owner of the table.
async fn owned<DB: Keys>(db: &Database<DB>) -> IdempotencyKeys<DB> {
    IdempotencyKeys::open(db.admin.clone(), KeyOptions::default()).await.unwrap()
}

fn named(name: &str) -> KeysOfName {
    KeysOfName { name: name.to_owned(), tenant: None }
}

/// Goal: the answer and the fingerprint of a request are gone, and neither the same request nor
/// another one under its key runs. Oracle: the row, the effects, and the claims.
async fn an_erased_key_answers_nothing_and_runs_nothing<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    assert_eq!((run(&keys, "k").await, run(&keys, "k").await), ("acquired", "replay"));
    let owner = owned(&db).await;
    let found = owner.named(&named("k"), None).await.unwrap();
    assert_eq!((&found.ended[..], found.running, found.next), (&[key("k")][..], 0, None));
    assert!(owner.erase(&key("k"), "ann").await.unwrap());
    let kept = "SELECT count(*) FROM idempotency_key WHERE outcome IS NULL AND state = 'failed' AND decided_by = 'ann'";
    assert_eq!(db.integer(kept).await.unwrap(), 1);
    for payload in ["k", "another request"] {
        let claimed = keys.begin(&key("k"), request(payload), &ClaimOptions::default()).await.unwrap();
        assert_eq!(claimed.as_str(), "discarded", "{payload}");
    }
    assert_eq!(effects(&db, "k").await, 1);
    assert!(owner.named(&named("k"), None).await.unwrap().ended.is_empty(), "it is done");
}

/// Goal: a walk finds all keys of an account and none of another, and leaves those in progress.
/// Oracle: the keys that it finds.
async fn keys_are_found_by_their_account_and_by_themselves<DB: Keys>(db: Database<DB>) {
    let keys = open(&db).await;
    for id in [id("ann", "pay", "1"), id("ann", "buy", "2"), id("bob", "pay", "1"), id("bob", "pay", "ann")] {
        let Claimed::Acquired(tx) = keys.begin(&id, request("r"), &ClaimOptions::default()).await.unwrap()
        else {
            panic!("a new key")
        };
        tx.commit(Ending::Succeeded, b"done").await.unwrap();
    }
    let leased = keys.claim(&id("ann", "pay", "3"), request("r"), &ClaimOptions::default()).await.unwrap();
    let found = keys.named(&named("ann"), None).await.unwrap();
    assert_eq!(found.ended, [id("ann", "buy", "2"), id("ann", "pay", "1"), id("bob", "pay", "ann")]);
    assert_eq!((found.running, found.next), (1, None));
    let bob = KeysOfName { tenant: Some(idempotency::Tenant::new("bob").unwrap()), ..named("1") };
    assert_eq!(keys.named(&bob, None).await.unwrap().ended, [id("bob", "pay", "1")]);
    let rest = keys.named(&named("ann"), Some(&id("ann", "pay", "1"))).await.unwrap();
    assert_eq!((rest.ended, rest.running), (vec![id("bob", "pay", "ann")], 1), "behind a key");
    assert!(!owned(&db).await.erase(&id("ann", "pay", "3"), "ann").await.unwrap(), "it is in progress");
    drop(leased);
}

/// The trigger of the table keeps a stored answer from every service.
async fn a_service_has_no_right_to_erase(db: Database<Postgres>) {
    let keys = open(&db).await;
    assert_eq!(run(&keys, "k").await, "acquired");
    assert!(keys.erase(&key("k"), "ann").await.is_err());
    assert_eq!(run(&keys, "k").await, "replay");
}
