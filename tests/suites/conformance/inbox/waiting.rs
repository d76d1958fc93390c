//! The consumer dead-letters messages that wait too long, by their age, even if sessions or
//! processes end in between.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use inbox::{HandlerError, Inbox, Reason};

use crate::inbox::broker::Broker;
use crate::inbox::database::{Database, TestDatabase};
use crate::inbox::failures::{BATCHES, dead_letters, until};
use crate::inbox::held_keys::{Rejects, holding, of, settled, signature, text};
use crate::inbox::message;
use crate::inbox::runner::{Effect, builder, start};

tests::cases! { "inbox/waiting/{on}/{case}":
    every {
        a_message_that_waits_through_many_sessions_is_given_up,
        a_held_message_that_waits_in_its_turn_is_given_up,
    }
}

const EVERY: Duration = Duration::from_millis(100);
const ATTEMPTS_MAX: u32 = 4;
const FAILING_MAX: Duration = Duration::from_secs(2);

/// Waits for something in every attempt, and counts the attempts.
fn waits<DB: TestDatabase>(tries: &Arc<AtomicU32>) -> Effect<DB> {
    let tries = Arc::clone(tries);
    Effect::new(move |_, _| {
        tries.fetch_add(1, Ordering::SeqCst);
        Err(HandlerError::not_yet(EVERY, "the price is not there yet"))
    })
}

/// Goal: a message is dead-lettered even if every session and process ends before its limits.
/// Oracle: the processes, each of which tries it once or twice, and the one dead letter.
async fn a_message_that_waits_through_many_sessions_is_given_up<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let broker = Broker::new([message("waits")]);
    let tries: Arc<AtomicU32> = Arc::default();
    let mut processes = 0;
    while dead_letters(&inbox).await.is_empty() {
        processes += 1;
        assert!(processes <= 500, "it is never given up");
        let before = tries.load(Ordering::SeqCst);
        let waiting = builder(&inbox, &broker, waits(&tries));
        let running = start(waiting.attempts_max(ATTEMPTS_MAX).failing_max(FAILING_MAX));
        until("it was tried", async || tries.load(Ordering::SeqCst) > before).await;
        running.stop().await;
    }
    assert!(processes >= 2, "{processes}");
    let [letter] = &dead_letters(&inbox).await[..] else { panic!("one") };
    assert_eq!((letter.reason, letter.attempts), (Reason::Poison, 0));
}

/// Goal: a held message whose handler waits in its turn has the limits of any other. Oracle: the
/// reason of its dead letter.
async fn a_held_message_that_waits_in_its_turn_is_given_up<DB: TestDatabase>(database: &Database<DB>) {
    let inbox: Inbox<DB> = database.inbox().await;
    settled(&inbox, &Rejects::these(["first"]), &["first", "held"]).await;
    let letters = dead_letters(&inbox).await;
    assert_eq!(of(&letters, "held").reason, Reason::Held);
    inbox.discard(of(&letters, "first").id, &signature()).await.unwrap();
    let idle = Broker::new([]);
    let waiting = holding(&inbox, &idle, waits(&Arc::default()), BATCHES[0]);
    let running = start(waiting.attempts_max(ATTEMPTS_MAX).failing_max(FAILING_MAX));
    until("it is given up", async || {
        let letters = dead_letters(&inbox).await;
        letters.iter().all(|letter| text(&letter.payload) == "held" && letter.reason == Reason::Poison)
    })
    .await;
    running.stop().await;
    assert_eq!(dead_letters(&inbox).await.len(), 1);
}
