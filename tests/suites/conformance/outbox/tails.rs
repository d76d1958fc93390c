//! Following a log: the result of one query.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use operate::tail::{Tail, TailFilter, TailLine};
use operate::{MessageState, Operator, Places, Role, Signed};
use outbox::NewMessage;
use outbox_log::{ExceptionChange, ExceptionState};

use crate::outbox::retention::{Relay, messages, parked};
use crate::outbox::support::{Database, TestDialect, pipeline, relay};

tests::cases! { "outbox/tails/{on}/{case}":
    every { what_one_look_returns_is_bounded_however_much_was_passed }
}

/// Returns everything that was passed, look by look.
async fn looks(tail: &mut Tail<'_>) -> Vec<Vec<TailLine>> {
    let mut looks = Vec::new();
    loop {
        let batch = tail.next().await.unwrap();
        looks.push(batch.lines);
        if !batch.more {
            return looks;
        }
    }
}

fn ids(lines: &[TailLine]) -> Vec<i64> {
    lines.iter().map(|line| line.id).collect()
}

/// Goal: following a log costs the memory of one batch, however far the relay has come since the
/// last query, and misses nothing. Oracle: the number of messages that each query returns, and the
/// bytes of their payloads; the ids of all queries together; and a message that was parked in the
/// first batch and has been published since.
async fn what_one_look_returns_is_bounded_however_much_was_passed<DB: TestDialect>(db: &Database<DB>) {
    const PASSED: i32 = 2_500;
    let mut main = Relay::new(db, &relay()).await;
    main.pass(&[]).await;
    let places = Places::new().outbox(&pipeline(&relay(), &db.relay_url()));
    let operator = Operator::new("ann", Role::Operator);
    let mut tail = Tail::begin(&places, &operator, TailFilter::default(), None).await.unwrap();
    db.enqueue(messages(PASSED)).await;
    let entries = main.follower.all().await;
    main.pass(&[ExceptionChange::Park(parked(&entries[4], ExceptionState::Dead))]).await;

    let found = looks(&mut tail).await;
    assert!(found.len() > 2 && found.iter().all(|lines| lines.len() <= 1_000), "{} looks", found.len());
    let expected: Vec<i64> = entries.iter().map(|entry| entry.id.0).collect();
    assert_eq!(found.iter().flat_map(|lines| ids(lines)).collect::<Vec<_>>(), expected);
    assert_eq!(found[0][4].state, MessageState::Dead);
    assert_eq!(looks(&mut tail).await.concat(), [], "nothing was passed since");
    main.pass(&[ExceptionChange::Resolve(entries[4].id)]).await;
    let left = looks(&mut tail).await.concat();
    assert_eq!((ids(&left), left[0].state), (vec![expected[4]], MessageState::Published));

    let signed = Signed { operator: operator.clone(), note: String::from("a test") };
    let mut tail = Tail::begin(&places, &operator, TailFilter::default(), Some(&signed)).await.unwrap();
    let large = "x".repeat(600 << 10);
    db.enqueue((0..30).map(|_| NewMessage::new("orders").json(&large))).await;
    let entries = main.pass(&[]).await;
    let found = looks(&mut tail).await;
    let bytes =
        |lines: &[TailLine]| lines.iter().map(|line| line.payload.as_ref().unwrap().len()).sum::<usize>();
    assert!(found.iter().all(|lines| bytes(lines) <= 8 << 20), "at most 8 MiB");
    assert_eq!(ids(&found.concat()), entries.iter().map(|entry| entry.id.0).collect::<Vec<_>>());
    places.close().await;
}
