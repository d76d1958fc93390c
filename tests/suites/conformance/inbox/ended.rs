//! Handlers that end their transaction, as a library may do behind their back: nothing is stored on
//! its own, and the message does not block its key permanently.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;

use async_trait::async_trait;
use inbox::{Action, Admission, AfterDeadLetter, Handler, HandlerError, Reason, RedriveOptions, Tx};
use message::Message;
use outbox::NewMessage;

use crate::inbox::broker::Broker;
use crate::inbox::consumer::{base, dead, effects, run_until_drained, start};
use crate::inbox::database::{Database, TestDatabase};
use crate::inbox::dead_letters::store_dead_letter;
use crate::inbox::enqueueing::{Swallows, outbox_of};
use crate::inbox::failures::{BATCHES, in_batches, until};
use crate::inbox::held_keys::{Rejects, SOON, of, settled, signature};
use crate::inbox::{consumer, message, message_of, scope};

tests::cases! { "inbox/ended/{on}/{case}":
    every {
        what_is_staged_after_the_end_of_its_transaction_does_not_leave,
        a_handler_that_ends_its_transaction_is_given_up,
        a_held_message_that_ends_its_transaction_is_given_up,
        a_redrive_that_ends_its_transaction_closes_nothing,
        a_requested_redrive_that_ends_its_transaction_is_not_reported_as_applied,
    }
}

/// Ends its transaction in SQL, and stages a message after that.
struct Ends;

#[async_trait]
impl<DB: TestDatabase> Handler<DB> for Ends {
    async fn handle(&self, tx: &mut Tx<DB>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        DB::apply(tx, "billing", message).await?;
        DB::sql(tx, "ROLLBACK").await?;
        tx.stage(NewMessage::new("invoices"))?;
        Ok(None)
    }
}

/// Oracle: the outbox, the effects.
async fn what_is_staged_after_the_end_of_its_transaction_does_not_leave<DB: TestDatabase>(
    database: &Database<DB>,
) {
    DB::add_outbox(database).await;
    let inbox = database.inbox().await.with_outbox(outbox_of(database));
    let incoming = message("ends");
    let mut tx = inbox.begin().await.unwrap();
    let admitted = tx.admit(&consumer("billing"), &scope("t1"), &incoming).await.unwrap();
    assert!(matches!(admitted, Admission::Fresh(_)));
    Ends.handle(&mut tx, &incoming).await.unwrap();
    let committed = tx.commit().await;
    assert!(committed.is_err(), "{committed:?}");
    assert_eq!((effects(database).await.len(), DB::enqueued(database).await.len()), (0, 0));
}

/// Goal: its failures are counted like any other, although each attempt would forget the earlier
/// ones in the transaction that it ends. Oracle: the dead letter.
async fn a_handler_that_ends_its_transaction_is_given_up<DB: TestDatabase>(database: &Database<DB>) {
    DB::add_outbox(database).await;
    let inbox = database.inbox().await.with_outbox(outbox_of(database));
    for batch in BATCHES {
        let broker = Broker::new([message("ends")]);
        let consuming = base(&inbox, &broker).handler(Ends).attempts_max(3);
        run_until_drained(in_batches(consuming, batch), &broker).await;
        let [letter] = &dead(&inbox).await[..] else { panic!("one") };
        assert_eq!((letter.reason, letter.attempts), (Reason::Poison, 3));
        inbox.discard(letter.id, &signature()).await.unwrap();
    }
    assert_eq!((effects(database).await.len(), DB::enqueued(database).await.len()), (0, 0));
}

/// Oracle: the dead letter of the held message, with no other traffic.
async fn a_held_message_that_ends_its_transaction_is_given_up<DB: TestDatabase>(database: &Database<DB>) {
    DB::add_outbox(database).await;
    let inbox = database.inbox().await.with_outbox(outbox_of(database));
    settled(&inbox, &Rejects::these(["first"]), &["first", "held"]).await;
    let letters = dead(&inbox).await;
    inbox.discard(of(&letters, "first").id, &signature()).await.unwrap();
    let idle = Broker::new([]);
    let holding = base(&inbox, &idle).handler(Ends).after_dead_letter(AfterDeadLetter::HoldKey);
    let (stop, running) = start(holding.redrive_interval(SOON).attempts_max(3));
    until("it is given up", async || {
        let letters = dead(&inbox).await;
        letters.iter().all(|letter| letter.payload == b"held"[..] && letter.reason == Reason::Poison)
    })
    .await;
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    let [letter] = &dead(&inbox).await[..] else { panic!("one") };
    assert_eq!(letter.attempts, 3);
    assert_eq!((effects(database).await.len(), DB::enqueued(database).await.len()), (0, 0));
}

/// Goal: a dead letter is not closed on its own, with or without an inbox row. Oracle: the dead
/// letter, the outbox, the effects.
async fn a_redrive_that_ends_its_transaction_closes_nothing<DB: TestDatabase>(database: &Database<DB>) {
    DB::add_outbox(database).await;
    let inbox = database.inbox().await.with_outbox(outbox_of(database));
    let accept = RedriveOptions::default().accept_late(true);
    let long_ago = inbox.window().now - Duration::from_secs(90 * 86_400);
    for (message, reason) in
        [(message("recent"), Reason::Rejected), (message_of(long_ago, "late"), Reason::TooOld)]
    {
        let id = store_dead_letter(&inbox, &message, reason).await;
        let redriven = inbox.redrive(&consumer("billing"), id, &Ends, accept).await;
        assert!(redriven.is_err(), "{redriven:?}");
        let letter = inbox.dead_letter_by_id(id).await.unwrap().unwrap();
        assert_eq!(letter.resolved, None, "{reason}");
        assert_eq!((effects(database).await.len(), DB::enqueued(database).await.len()), (0, 0));
    }
}

/// Oracle: the outcome of the request.
async fn a_requested_redrive_that_ends_its_transaction_is_not_reported_as_applied<DB: TestDatabase>(
    database: &Database<DB>,
) {
    DB::add_outbox(database).await;
    let inbox = database.inbox().await.with_outbox(outbox_of(database));
    let broker = Broker::new([message("it")]);
    run_until_drained(base(&inbox, &broker).handler(Swallows), &broker).await;
    let [letter] = &dead(&inbox).await[..] else { panic!("one") };
    inbox.request_redrive(letter.id, RedriveOptions::default(), &signature()).await.unwrap();
    let idle = Broker::new([]);
    let running = start(base(&inbox, &idle).handler(Ends).redrive_interval(SOON));
    let outcome = async || {
        let decisions = inbox.decisions(std::num::NonZeroU32::MIN).await.unwrap();
        assert_eq!(decisions[0].action, Action::Redrive);
        decisions[0].subject.outcome.clone()
    };
    until("the request has an outcome", async || outcome().await.is_some()).await;
    let outcome = outcome().await.unwrap();
    assert!(outcome.contains("inbox rows are missing"), "{outcome}");
    assert_eq!(dead(&inbox).await.len(), 1, "it is still open");
    let (stop, running) = running;
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
}
