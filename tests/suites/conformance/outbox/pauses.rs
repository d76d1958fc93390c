//! Pauses of operators, and how many there can be.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use outbox_log::{LogOptions, PAUSES_MAX, PauseScope, admin};

use crate::outbox::support::{Database, TestDialect, relay, source};

tests::cases! { "outbox/pauses/{on}/{case}":
    every { the_pauses_of_a_relay_have_a_maximum }
}

/// Goal: the data that a relay reads every 400 ms and keeps in memory is bounded. Oracle: which
/// pauses are accepted one below the maximum and at it, and what a reader returns. The pipeline can
/// be paused at any time, and another relay has its own maximum.
async fn the_pauses_of_a_relay_have_a_maximum<DB: TestDialect>(db: &Database<DB>) {
    let admin = admin::open(&db.relay_url(), source(), LogOptions::default()).unwrap();
    let other = outbox_log::RelayName::new("other").unwrap();
    let key = |number: i64| PauseScope::Key(format!("key-{number}"));
    let pause = async |scope: &PauseScope| admin.pause(&relay(), scope, "ann", "look first").await;
    let paused = async || db.reader().await.paused_scopes().await.unwrap();
    db.run(&format!(
        "INSERT INTO outbox_pause (relay, kind, name, actor, reason) \
         WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < {}) \
         SELECT 'main', 'key', 'key-' || n, 'ann', 'look first' FROM counted",
        PAUSES_MAX - 1
    ))
    .await;
    assert!(pause(&key(PAUSES_MAX)).await.unwrap(), "the last one that fits");
    assert!(!pause(&key(1)).await.unwrap(), "is paused already");
    for scope in [key(PAUSES_MAX + 1), PauseScope::Topic(String::from("orders"))] {
        let refused = pause(&scope).await.unwrap_err().to_string();
        assert!(refused.contains(&scope.to_string()) && refused.contains("10000"), "{refused}");
        assert!(refused.contains("resume some"), "{refused}");
    }
    assert!(admin.pause(&other, &key(1), "ann", "look first").await.unwrap());
    assert_eq!(paused().await.len(), usize::try_from(PAUSES_MAX).unwrap(), "what was refused is not stored");
    assert_eq!(admin.operations(&relay(), 10).await.unwrap().len(), 1, "nor recorded");

    assert!(pause(&PauseScope::Pipeline).await.unwrap());
    assert!(paused().await.contains(&PauseScope::Pipeline));
    assert!(admin.resume(&relay(), &key(1), None, "ann", "looked").await.unwrap());
    let topic = PauseScope::Topic(String::from("orders"));
    assert!(pause(&topic).await.unwrap(), "the pipeline takes no place");
    let found = paused().await;
    assert!(found.contains(&topic) && !found.contains(&key(1)));
}
