//! Following a log: the result of one query.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use operate::tail::{Tail, TailFilter, TailLine};
use operate::{MessageState, Operator, Places, Role, Signed};
use outbox::NewMessage;
use outbox_log::admin::Decision;
use outbox_log::{ExceptionChange, ExceptionState};

use crate::outbox::decisions::{decide, edit};
use crate::outbox::retention::{Relay, messages, parked};
use crate::outbox::support::{Database, TestDialect, pipeline, relay};

tests::cases! { "outbox/tails/{on}/{case}":
    every {
        what_one_look_returns_is_bounded_however_much_was_passed,
        the_former_payload_of_an_edited_message_is_not_shown_as_published,
    }
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

/// Goal: what is shown beside "published" is what was published. Oracle: two messages of one look,
/// one of which an operator edited before it was published.
async fn the_former_payload_of_an_edited_message_is_not_shown_as_published<DB: TestDialect>(
    db: &Database<DB>,
) {
    let mut main = Relay::new(db, &relay()).await;
    main.pass(&[]).await;
    let places = Places::new().outbox(&pipeline(&relay(), &db.relay_url()));
    let signed =
        Signed { operator: Operator::new("ann", Role::Operator), note: String::from("a customer asked") };
    let mut tail =
        Tail::begin(&places, &signed.operator, TailFilter::default(), Some(&signed)).await.unwrap();
    db.enqueue(messages(2)).await;
    let entries = main.follower.all().await;
    main.pass(&[ExceptionChange::Park(parked(&entries[0], ExceptionState::Dead))]).await;
    decide(db, &entries[0], edit()).await;
    decide(db, &entries[0], Decision::Requeue).await;
    main.pass(&[ExceptionChange::Resolve(entries[0].id)]).await;
    let lines = looks(&mut tail).await.concat();
    let shown: Vec<_> = lines.iter().map(|line| (line.state, line.payload.is_some())).collect();
    assert_eq!(shown, [(MessageState::Published, false), (MessageState::Published, true)]);
    places.close().await;
}
