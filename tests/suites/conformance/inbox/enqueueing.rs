//! Handlers that enqueue: effect and message commit together, or neither does. Closures with state.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::inbox::broker::Broker;
use crate::inbox::consumer::{
    Cancelled, Placed, base, dead, effects, event, note, placed, run_until_drained, start,
};
use crate::inbox::database::{Database, TestDatabase};
use crate::inbox::failures::{BATCHES, in_batches, until};
use crate::inbox::{consumer, message, scope};
use async_trait::async_trait;
use inbox::{Admission, Handler, HandlerError, Next, Reason, Received, RedriveError, RedriveOptions, Tx};
use message::{Message, OrderingKey};
use outbox::{EnqueueError, NewMessage, Outbox};
use sqlx::Connection as _;

tests::cases! { "inbox/enqueueing/{on}/{case}":
    every {
        what_a_handler_enqueues_leaves_once_with_its_effect,
        a_swallowed_enqueue_error_rejects_the_message,
        a_swallowed_enqueue_error_of_a_batch_function_rejects_one_message,
        an_enqueue_that_is_dropped_fails_the_message,
        a_message_in_a_savepoint_that_is_rolled_back_does_not_leave,
        without_an_outbox_messages_wait_and_others_go_on,
        a_redrive_refuses_a_swallowed_enqueue_error,
        a_transaction_of_the_callers_own_refuses_to_commit_without_its_message,
        what_is_not_there_yet_is_waited_for_and_not_counted,
        what_does_not_come_is_dead_lettered_in_the_end,
    }
}

/// A topic that no message can have.
const NOWHERE: &str = "";

pub(super) fn outbox_of<DB: TestDatabase>(database: &Database<DB>) -> Outbox<DB> {
    Outbox::builder().schema(database.schema.clone()).build()
}

/// The state of a service, as a closure captures it.
struct Billing {
    topic: String,
    calls: AtomicU32,
}

impl Billing {
    fn new() -> Arc<Self> {
        Arc::new(Self { topic: String::from("invoices"), calls: AtomicU32::new(0) })
    }

    /// Writes an invoice and enqueues a message about it.
    async fn bill<DB: TestDatabase>(&self, tx: &mut Tx<DB>, order: i64) -> Result<(), HandlerError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        note::<DB>(tx, format!("bill {order}")).await?;
        tx.enqueue(NewMessage::new(format!("{}-{order}", self.topic))).await?;
        Ok(())
    }

    /// Does the same, but ignores that the message of order 2 is refused.
    async fn swallow<DB: TestDatabase>(&self, tx: &mut Tx<DB>, order: i64) -> Result<(), HandlerError> {
        self.bill(tx, order).await?;
        if order == 2 {
            let refused = tx.enqueue(NewMessage::new(NOWHERE)).await;
            assert!(matches!(refused, Err(EnqueueError::Invalid(_))), "{refused:?}");
        }
        Ok(())
    }
}

async fn what_a_handler_enqueues_leaves_once_with_its_effect<DB: TestDatabase>(database: &Database<DB>) {
    DB::add_outbox(database).await;
    let inbox = database.inbox().await;
    let cancelled = event("order.cancelled", r#"{"order":9}"#).with_key(OrderingKey::new("k").unwrap());
    let mut with_header = cancelled.clone();
    with_header.headers.insert("saga-key", "checkout/9/ship").unwrap();
    let broker = Broker::new([placed(1), placed(1), placed(3), with_header, event("noted", "x")]);
    broker.send(Ok(placed(1)));
    let billing = Billing::new();
    let (state, late) = (Arc::clone(&billing), Arc::clone(&billing));
    let builder = base(&inbox, &broker)
        .outbox(outbox_of(database))
        .on(async move |tx: &mut Tx<DB>, placed: Placed| state.bill(tx, placed.order).await)
        .on(async move |tx: &mut Tx<DB>, cancelled: Cancelled, received: &Received| {
            note::<DB>(tx, format!("refund {} of {:?}", cancelled.order, late.topic)).await?;
            let key = received.headers.get("saga-key").ok_or_else(|| HandlerError::reject("no key"))?;
            assert_eq!(received.key.as_ref().map(OrderingKey::as_str), Some("k"));
            tx.stage(NewMessage::new("refunds").header("saga-key", key))?;
            Ok(())
        })
        .on_message("noted", async |tx: &mut Tx<DB>, message: &Message| {
            tx.enqueue_batch([NewMessage::new("noted"), NewMessage::new(message.kind.as_str())]).await?;
            Ok(())
        });
    run_until_drained(builder, &broker).await;
    let expected = ["bill 1", "bill 1", "bill 1", "bill 3", "refund 9 of \"invoices\""];
    assert_eq!(effects(database).await, expected, "each is a message of its own");
    let left = ["invoices-1", "invoices-1", "invoices-1", "invoices-3", "noted", "noted", "refunds"];
    assert_eq!(DB::enqueued(database).await, left);
    assert_eq!((billing.calls.load(Ordering::Relaxed), dead(&inbox).await.len()), (4, 0));
}

/// Oracle: before, the effect of order 2 was committed without its second message. Now it is a dead
/// letter whose error names the cause, and neither its effect nor its first message exists.
async fn a_swallowed_enqueue_error_rejects_the_message<DB: TestDatabase>(database: &Database<DB>) {
    DB::add_outbox(database).await;
    let inbox = database.inbox().await;
    for (round, batch) in BATCHES.into_iter().enumerate() {
        let broker = Broker::new((1..=4).map(placed));
        let billing = Billing::new();
        let builder = base(&inbox, &broker)
            .outbox(outbox_of(database))
            .on(async move |tx: &mut Tx<DB>, placed: Placed| billing.swallow(tx, placed.order).await);
        run_until_drained(in_batches(builder, batch), &broker).await;
        let of = |order: u32| [format!("bill {order}"), format!("invoices-{order}")];
        let (mut bills, mut left) = (Vec::new(), Vec::new());
        for [bill, invoice] in [of(1), of(3), of(4)] {
            bills.extend(std::iter::repeat_n(bill, round + 1));
            left.extend(std::iter::repeat_n(invoice, round + 1));
        }
        assert_eq!(effects(database).await, bills, "{batch:?}");
        assert_eq!(DB::enqueued(database).await, left, "{batch:?}");
        let dead = dead(&inbox).await;
        assert_eq!(dead.len(), round + 1, "{batch:?}");
        for letter in dead {
            assert_eq!(letter.reason, Reason::Rejected);
            assert!(letter.error.contains("topic"), "{}", letter.error);
        }
    }
}

async fn a_swallowed_enqueue_error_of_a_batch_function_rejects_one_message<DB: TestDatabase>(
    database: &Database<DB>,
) {
    DB::add_outbox(database).await;
    let inbox = database.inbox().await;
    let broker = Broker::new((1..=6).map(placed));
    let billing = Billing::new();
    let builder = base(&inbox, &broker).outbox(outbox_of(database)).on_batch(
        async move |tx: &mut Tx<DB>, placed: Vec<Placed>| {
            for Placed { order } in placed {
                // After the refusal every further call is refused as well.
                let _ = billing.swallow(tx, order).await;
            }
            Ok(())
        },
    );
    run_until_drained(builder.batch(NonZeroUsize::new(6).unwrap()), &broker).await;
    let expected: Vec<_> = [1, 3, 4, 5, 6].map(|order| format!("bill {order}")).into();
    assert_eq!(effects(database).await, expected);
    assert_eq!(DB::enqueued(database).await.len(), 5);
    let [letter] = &dead(&inbox).await[..] else { panic!("one") };
    assert_eq!(letter.reason, Reason::Rejected);
}

/// Goal: a call that is dropped half-way may have stored a part of its messages, so its transaction
/// does not commit.
async fn an_enqueue_that_is_dropped_fails_the_message<DB: TestDatabase>(database: &Database<DB>) {
    DB::add_outbox(database).await;
    let inbox = database.inbox().await;
    let broker = Broker::new([placed(1)]);
    let builder = base(&inbox, &broker).outbox(outbox_of(database)).attempts_max(3).on(
        async |tx: &mut Tx<DB>, placed: Placed| {
            note::<DB>(tx, format!("bill {}", placed.order)).await?;
            // Polled once, then dropped. One poll cannot store all of them.
            let batch = (0..6_000).map(|_| NewMessage::new("invoices"));
            let enqueueing = std::pin::pin!(tx.enqueue_batch(batch));
            assert!(futures_util::poll!(enqueueing).is_pending());
            Ok(())
        },
    );
    run_until_drained(builder, &broker).await;
    assert_eq!((effects(database).await.len(), DB::enqueued(database).await.len()), (0, 0));
    let [letter] = &dead(&inbox).await[..] else { panic!("one") };
    assert_eq!((letter.reason, letter.attempts), (Reason::Poison, 3));
    assert!(letter.error.contains("dropped before it ended"), "{}", letter.error);
}

async fn a_message_in_a_savepoint_that_is_rolled_back_does_not_leave<DB: TestDatabase>(
    database: &Database<DB>,
) {
    DB::add_outbox(database).await;
    let inbox = database.inbox().await;
    for (round, batch) in BATCHES.into_iter().enumerate() {
        let broker = Broker::new((1..=3).map(placed));
        let outbox = outbox_of(database);
        let builder =
            base(&inbox, &broker).outbox(outbox.clone()).on(async move |tx: &mut Tx<DB>, placed: Placed| {
                note::<DB>(tx, format!("bill {}", placed.order)).await?;
                let mut savepoint = tx.begin().await?;
                outbox.enqueue(&mut savepoint, NewMessage::new("undone")).await?;
                let refused = outbox.enqueue(&mut savepoint, NewMessage::new(NOWHERE)).await;
                assert!(refused.is_err());
                savepoint.rollback().await?;
                tx.enqueue(NewMessage::new("invoices")).await?;
                Ok(())
            });
        run_until_drained(in_batches(builder, batch), &broker).await;
        assert_eq!(effects(database).await.len(), 3 * (round + 1), "{batch:?}");
        assert_eq!(DB::enqueued(database).await, vec!["invoices"; 3 * (round + 1)], "{batch:?}");
        assert_eq!(dead(&inbox).await.len(), 0);
    }
}

/// Goal: a service that only consumes needs no tables of an outbox; one whose outbox was forgotten
/// loses nothing.
async fn without_an_outbox_messages_wait_and_others_go_on<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let broker = Broker::new([placed(1), event("order.cancelled", r#"{"order":2}"#)]);
    let billing = Billing::new();
    let state = Arc::clone(&billing);
    let consuming = || {
        let state = Arc::clone(&state);
        base(&inbox, &broker)
            .attempts_max(1)
            .on(async move |tx: &mut Tx<DB>, placed: Placed| {
                state.bill(tx, placed.order).await.inspect_err(|error| {
                    let source = std::error::Error::source(error).unwrap();
                    assert!(source.to_string().contains(".outbox(..)"), "{source}");
                })
            })
            .on(async |tx: &mut Tx<DB>, cancelled: Cancelled| {
                note::<DB>(tx, format!("refund {}", cancelled.order)).await
            })
    };
    let (stop, running) = start(consuming());
    until("the other message has taken effect", async || effects(database).await == ["refund 2"]).await;
    until("it is tried again", async || billing.calls.load(Ordering::Relaxed) > 2).await;
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    assert_eq!(dead(&inbox).await.len(), 0);
    DB::add_outbox(database).await;
    run_until_drained(consuming().outbox(outbox_of(database)), &broker).await;
    assert_eq!(effects(database).await, ["bill 1", "refund 2"]);
    assert_eq!(DB::enqueued(database).await, ["invoices-1"]);
}

/// A handler that ignores that its message is refused.
pub(super) struct Swallows;

#[async_trait]
impl<DB: TestDatabase> Handler<DB> for Swallows {
    async fn handle(&self, tx: &mut Tx<DB>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        DB::apply(tx, "billing", message).await?;
        let _ = tx.enqueue(NewMessage::new(NOWHERE)).await;
        Ok(None)
    }
}

async fn a_redrive_refuses_a_swallowed_enqueue_error<DB: TestDatabase>(database: &Database<DB>) {
    DB::add_outbox(database).await;
    let inbox = database.inbox().await.with_outbox(outbox_of(database));
    let broker = Broker::new([message("it")]);
    run_until_drained(base(&inbox, &broker).handler(Swallows), &broker).await;
    let [letter] = &dead(&inbox).await[..] else { panic!("one") };
    assert_eq!(letter.reason, Reason::Rejected);
    let options = RedriveOptions::default();
    let redriven = inbox.redrive(&consumer("billing"), letter.id, &Swallows, options).await;
    let Err(RedriveError::Handler(error)) = redriven else { panic!("{redriven:?}") };
    assert_eq!(error.next(), Next::Reject);
    assert_eq!((effects(database).await.len(), dead(&inbox).await.len()), (0, 1));
}

async fn a_transaction_of_the_callers_own_refuses_to_commit_without_its_message<DB: TestDatabase>(
    database: &Database<DB>,
) {
    DB::add_outbox(database).await;
    let inbox = database.inbox().await.with_outbox(outbox_of(database));
    let (billing, tenant) = (consumer("billing"), scope("t1"));
    for (topic, left) in [(NOWHERE, 0), ("invoices", 1)] {
        let incoming = message(topic);
        let mut tx = inbox.begin().await.unwrap();
        let admitted = tx.admit(&billing, &tenant, &incoming).await.unwrap();
        assert!(matches!(admitted, Admission::Fresh(_)));
        DB::apply(&mut tx, "billing", &incoming).await.unwrap();
        let staged = tx.stage(NewMessage::new(topic));
        assert_eq!(staged.is_ok(), left == 1);
        let committed = tx.commit().await;
        assert_eq!(committed.is_ok(), left == 1, "{committed:?}");
        assert_eq!((effects(database).await.len(), DB::enqueued(database).await.len()), (left, left));
    }
}

const EVERY: Duration = Duration::from_millis(100);

/// Oracle: more tries than the maximum of attempts, none of them counted; another key continues at
/// once; the next message of the key takes effect after it.
async fn what_is_not_there_yet_is_waited_for_and_not_counted<DB: TestDatabase>(database: &Database<DB>) {
    const TRIES: u32 = 8;
    let inbox = database.inbox().await;
    for batch in BATCHES {
        let of = |key: &str, order| placed(order).with_key(OrderingKey::new(key).unwrap());
        let broker = Broker::new([of("early", 1), of("early", 2), of("other", 3)]);
        let tries = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&tries);
        let builder = base(&inbox, &broker).attempts_max(2).on(
            async move |tx: &mut Tx<DB>, placed: Placed, received: &Received| {
                assert_eq!(received.attempt, 1, "no failure is counted");
                if placed.order == 1 && count.fetch_add(1, Ordering::Relaxed) < TRIES {
                    return Err(HandlerError::not_yet(EVERY, "the customer is not there yet"));
                }
                note::<DB>(tx, format!("bill {}", placed.order)).await
            },
        );
        let begun = Instant::now();
        run_until_drained(in_batches(builder, batch), &broker).await;
        assert!(begun.elapsed() >= EVERY * (TRIES - 1), "{:?}", begun.elapsed());
        let expected = ["bill 3", "bill 1", "bill 2"];
        assert_eq!(DB::effects(&database.pool, "billing").await, expected, "{batch:?}");
        assert_eq!((tries.load(Ordering::Relaxed), dead(&inbox).await.len()), (TRIES + 1, 0));
        let mut connection = database.pool.acquire().await.unwrap();
        DB::sql(&mut connection, "DELETE FROM effect").await.unwrap();
    }
}

async fn what_does_not_come_is_dead_lettered_in_the_end<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let broker = Broker::new([placed(1)]);
    let builder =
        base(&inbox, &broker).attempts_max(3).failing_max(EVERY * 5).on(async |_: &mut Tx<DB>, _: Placed| {
            Err::<(), _>(HandlerError::not_yet(EVERY, "the customer is not there yet"))
        });
    let begun = Instant::now();
    run_until_drained(builder, &broker).await;
    assert!(begun.elapsed() >= EVERY * 5, "{:?}", begun.elapsed());
    let [letter] = &dead(&inbox).await[..] else { panic!("one") };
    assert_eq!((letter.reason, letter.attempts), (Reason::Poison, 0));
    assert!(letter.error.contains("not there yet"), "{}", letter.error);
}
