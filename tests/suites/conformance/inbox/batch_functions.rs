//! Functions that get the events of a batch in one call.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::inbox::broker::Broker;
use crate::inbox::consumer::{Placed, base, dead, effects, event, note, placed, refund, run_until_drained};
use crate::inbox::database::{Database, TestDatabase};
use inbox::{HandlerError, Reason, Received, Tx, WaitReason};
use migrations::Dialect as Name;
use tokio::sync::{Notify, oneshot};

tests::cases! { "inbox/runner/{on}/{case}":
    every {
        a_batch_function_gets_events_that_follow_each_other,
        the_event_on_which_a_batch_function_fails_dies_alone,
        a_batch_function_that_hangs_is_ended_as_one_call,
        a_slow_handler_of_a_batch_is_no_silent_database,
    }
}

async fn bill_all<DB: TestDatabase>(tx: &mut Tx<DB>, placed: Vec<Placed>) -> Result<(), HandlerError> {
    let orders: Vec<_> = placed.iter().map(|placed| placed.order.to_string()).collect();
    note::<DB>(tx, format!("bill {}", orders.join(" "))).await
}

async fn bill_most<DB: TestDatabase>(
    tx: &mut Tx<DB>,
    placed: Vec<Placed>,
    received: &[Received],
) -> Result<(), HandlerError> {
    assert_eq!(placed.len(), received.len());
    for Placed { order } in &placed {
        note::<DB>(tx, format!("bill {order}")).await?;
    }
    if placed.iter().any(|placed| placed.order == 5) {
        Err(HandlerError::retry("one of them is not for us"))
    } else {
        Ok(())
    }
}

async fn a_batch_function_gets_events_that_follow_each_other<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let again = placed(3);
    let broker = Broker::new([
        placed(1),
        placed(2),
        again.clone(),
        event("order.cancelled", r#"{"order":2}"#),
        again,
        placed(4),
        placed(5),
    ]);
    let builder = base(&inbox, &broker).on_batch(bill_all::<DB>).on(refund::<DB>);
    run_until_drained(builder.batch(NonZeroUsize::new(50).unwrap()), &broker).await;
    assert_eq!(effects(database).await, ["bill 1 2 3", "bill 4 5", "refund 2 of orders"]);
}

async fn the_event_on_which_a_batch_function_fails_dies_alone<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let broker = Broker::new((1..=9).map(placed));
    let builder = base(&inbox, &broker).on_batch(bill_most::<DB>).attempts_max(3);
    run_until_drained(builder.batch(NonZeroUsize::new(50).unwrap()), &broker).await;
    let expected: Vec<String> = [1, 2, 3, 4, 6, 7, 8, 9].map(|order| format!("bill {order}")).into();
    assert_eq!(effects(database).await, expected);
    let [letter] = &dead(&inbox).await[..] else { panic!("one") };
    assert_eq!((letter.reason, letter.attempts), (Reason::Poison, 3));
    assert!(letter.error.contains("not for us"), "{}", letter.error);
}

/// A call of a batch function that never returns.
struct Hung {
    began: Instant,
    messages: u32,
    ended: &'static OnceLock<EndedCall>,
}

/// A call that was dropped.
struct EndedCall {
    took: Duration,
    /// The size of its batch.
    messages: u32,
}

/// Returns the one call on a database that was dropped. A static of a generic function is shared by
/// the databases.
fn ended_call<DB: TestDatabase>() -> &'static OnceLock<EndedCall> {
    static POSTGRES: OnceLock<EndedCall> = OnceLock::new();
    static SQLITE: OnceLock<EndedCall> = OnceLock::new();
    match DB::DIALECT {
        Name::Postgres => &POSTGRES,
        Name::Sqlite => &SQLITE,
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        let _ = self.ended.set(EndedCall { took: self.began.elapsed(), messages: self.messages });
    }
}

/// Goal: a batch in one call has the same time limit as any other call. Oracle: the time at which
/// the call was dropped, and the size of its batch: a limit for each of its messages would take
/// more than a minute, which no busy machine reaches with one limit.
async fn a_batch_function_that_hangs_is_ended_as_one_call<DB: TestDatabase>(database: &Database<DB>) {
    async fn hang_once<DB: TestDatabase>(_tx: &mut Tx<DB>, placed: Vec<Placed>) -> Result<(), HandlerError> {
        if ended_call::<DB>().get().is_none() {
            let messages = u32::try_from(placed.len()).unwrap();
            let _hung = Hung { began: Instant::now(), messages, ended: ended_call::<DB>() };
            std::future::pending::<()>().await;
        }
        Ok(())
    }
    let inbox = database.inbox().await;
    let broker = Broker::new((1..=200).map(placed));
    let limit = Duration::from_millis(500);
    let builder = base(&inbox, &broker).on_batch(hang_once::<DB>).handler_timeout(limit);
    run_until_drained(builder.batch(NonZeroUsize::new(200).unwrap()), &broker).await;
    let EndedCall { took, messages } = ended_call::<DB>().get().unwrap();
    assert!(*messages > 120, "a batch of {messages}");
    assert!(*took < limit * 120, "the batch was ended after {took:?}");
}

/// Goal: while a later message of a batch is in its handler, the consumer does not say that the
/// database is silent. Oracle: the reasons in its status.
async fn a_slow_handler_of_a_batch_is_no_silent_database<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let broker = Broker::new([placed(1), placed(2)]);
    let begun: Arc<Notify> = Arc::default();
    let ended: Arc<Notify> = Arc::default();
    let signals = (Arc::clone(&begun), Arc::clone(&ended));
    let slow = async move |_: &mut Tx<DB>, placed: Placed| {
        if placed.order == 2 {
            signals.0.notify_one();
            signals.1.notified().await;
        }
        Ok::<_, HandlerError>(())
    };
    let builder = base(&inbox, &broker).on(slow).batch(NonZeroUsize::new(50).unwrap());
    let consumer = builder.build().unwrap();
    let status = consumer.status();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(consumer.run(async move { drop(stopped.await) }));
    begun.notified().await;
    let waits: Vec<_> = status.waits().iter().map(|wait| (wait.reason, wait.messages)).collect();
    assert_eq!(waits, [(WaitReason::Handler, 1)]);
    ended.notify_one();
    broker.drained().await;
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}
