//! Messages that end the process of their consumer: counted, given up, and nothing else goes along.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use crate::inbox::broker::Broker;
use crate::inbox::database::{Database, TestDatabase};
use crate::inbox::failures::{BATCHES, dead_letters, in_batches};
use crate::inbox::message;
use async_trait::async_trait;
use inbox::{
    AfterDeadLetter, Consumer, Dialect, Handler, HandlerError, Inbox, Reason, RedriveOptions, Signature,
};
use message::{Message, OrderingKey};
use sqlx::Transaction;
use tokio::sync::watch;

cases! { "inbox/ends":
    every {
        a_message_that_ends_its_process_is_given_up_alone,
        a_redrive_that_ends_its_process_is_given_up,
    }
}

const ENDS: &[u8] = b"ends its process";

/// Tells when it has the one message that ends its process; beside that no other message gets done.
#[derive(Clone)]
struct Ending {
    in_hand: Arc<watch::Sender<bool>>,
}

#[async_trait]
impl<DB: TestDatabase + Dialect> Handler<DB> for Ending {
    async fn handle(
        &self,
        tx: &mut Transaction<'static, DB>,
        message: &Message,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        if message.payload == ENDS {
            self.in_hand.send_replace(true);
            return std::future::pending().await;
        }
        let mut in_hand = self.in_hand.subscribe();
        let work = tokio::time::sleep(Duration::from_millis(20));
        tokio::select! {
            biased;
            () = async { drop(in_hand.wait_for(|in_hand| *in_hand).await) } => {}
            () = work => return Ok(DB::apply(tx, "billing", message).await.map(|()| None)?),
        }
        std::future::pending().await
    }
}

/// A process of the consumer, until it ends with the message in hand (`true`) or nothing is left.
async fn live<DB: TestDatabase>(inbox: &Inbox<DB>, broker: &Broker, batch: Option<NonZeroUsize>) -> bool {
    let (source, in_hand) = (broker.clone(), Arc::new(watch::channel(false).0));
    let mut has_ended = in_hand.subscribe();
    let consumer = Consumer::builder(inbox.clone(), "billing")
        .subscribe(move || {
            let broker = source.clone();
            async move { Ok(broker.subscribe()) }
        })
        .handler(Ending { in_hand })
        .concurrency(NonZeroUsize::new(4).unwrap());
    let running = tokio::spawn(in_batches(consumer, batch).run(std::future::pending::<()>()));
    let is_over = tokio::select! {
        ended = has_ended.wait_for(|in_hand| *in_hand) => ended.is_ok(),
        () = broker.drained() => false,
    };
    running.abort();
    assert!(running.await.is_err(), "it ran until then");
    is_over
}

/// Goal: a handler that ends its process (an abort, no memory left) ends a bounded number of them,
/// also where the broker does not say that it delivers again, and takes no message along that was
/// in hand beside it. Oracle: the processes that ended, the one dead letter, the effects.
async fn a_message_that_ends_its_process_is_given_up_alone<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    for (batch, is_told) in [(BATCHES[0], true), (BATCHES[0], false), (BATCHES[1], false)] {
        let innocent = ["one", "two", "three"].map(message);
        let broker = Broker::new([message("ends its process")].into_iter().chain(innocent.clone()));
        if !is_told {
            broker.says_nothing_of_redeliveries();
        }
        let mut ended = 0;
        while live(&inbox, &broker, batch).await {
            ended += 1;
            assert!(ended <= 20, "it goes on ending processes");
        }
        assert!(ended <= 6, "{ended} processes");
        let dead = dead_letters(&inbox).await;
        let [letter] = &dead[..] else { panic!("{dead:?}") };
        assert_eq!((letter.reason, &letter.payload[..]), (Reason::Poison, ENDS));
        assert!(letter.error.contains("5 processes ended"), "{}", letter.error);
        let mut effects = DB::effects(&database.pool, "billing").await;
        effects.sort_unstable();
        assert_eq!(effects, ["one", "three", "two"]);
        for message in &innocent {
            let (consumer, scope) = (crate::inbox::consumer("billing"), inbox::Tenant::none());
            assert_eq!(inbox.attempt(&consumer, &scope, message.id).await.unwrap(), None);
        }
        let mut tx = database.admin.begin().await.unwrap();
        DB::sql(&mut tx, "DELETE FROM effect").await.unwrap();
        tx.commit().await.unwrap();
        let signature =
            Signature { actor: String::from("test"), note: String::from("over"), selection: None };
        inbox.discard(letter.id, &signature).await.unwrap();
    }
}

/// Rejects a message, ends its process with another, and applies all others.
#[derive(Clone)]
struct Redriven(Ending);

#[async_trait]
impl<DB: TestDatabase + Dialect> Handler<DB> for Redriven {
    async fn handle(
        &self,
        tx: &mut Transaction<'static, DB>,
        message: &Message,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        match &message.payload[..] {
            b"is rejected" => Err(HandlerError::reject("no such price")),
            _ => self.0.handle(tx, message).await,
        }
    }
}

/// A process of the consumer that redrives, until it ends with a message in hand (`true`) or
/// something is done.
async fn redrive<DB: TestDatabase>(
    inbox: &Inbox<DB>,
    broker: &Broker,
    is_done: impl AsyncFn() -> bool,
) -> bool {
    let (source, in_hand) = (broker.clone(), Arc::new(watch::channel(false).0));
    let mut has_ended = in_hand.subscribe();
    let consumer = Consumer::builder(inbox.clone(), "billing")
        .subscribe(move || {
            let broker = source.clone();
            async move { Ok(broker.subscribe()) }
        })
        .handler(Redriven(Ending { in_hand }))
        .after_dead_letter(AfterDeadLetter::HoldKey)
        .redrive_interval(Some(Duration::from_millis(5)))
        .build()
        .unwrap();
    let running = tokio::spawn(consumer.run(std::future::pending::<()>()));
    let done = async {
        while !is_done().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let is_over = tokio::select! {
        ended = has_ended.wait_for(|in_hand| *in_hand) => ended.is_ok(),
        () = done => false,
    };
    running.abort();
    assert!(running.await.is_err(), "it ran until then");
    is_over
}

/// Goal: a dead letter whose handler ends its process ends a bounded number of them when it is
/// redriven, on request or in its turn. Oracle: the processes that ended, what became of the
/// request, and the dead letters.
async fn a_redrive_that_ends_its_process_is_given_up<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let signature = Signature { actor: String::from("test"), note: String::from("again"), selection: None };
    let of_key = |payload: &str| message(payload).with_key(OrderingKey::new("k").unwrap());
    let broker = Broker::new([of_key("is rejected"), of_key("ends its process")]);
    let both = async || dead_letters(&inbox).await.len() == 2;
    assert!(!redrive(&inbox, &broker, both).await, "it is held");
    let dead = dead_letters(&inbox).await;
    assert_eq!(dead.iter().map(|letter| letter.reason).collect::<Vec<_>>(), [Reason::Rejected, Reason::Held]);
    let [rejected, held] = [dead[0].id, dead[1].id];

    // In its turn.
    inbox.discard(rejected, &signature).await.unwrap();
    let is_given_up = async || {
        let letter = inbox.dead_letter_by_id(held).await.unwrap().unwrap();
        letter.reason == Reason::Poison && letter.error.contains("5 processes ended")
    };
    let mut ended = 0;
    while redrive(&inbox, &broker, &is_given_up).await {
        ended += 1;
        assert!(ended <= 6, "it goes on ending processes in its turn");
    }

    // On request, each of which begins anew.
    for _ in 0..2 {
        inbox.request_redrive(held, RedriveOptions::default(), &signature).await.unwrap();
        let one = NonZeroU32::MIN;
        let is_given_up = async || {
            let decisions = inbox.decisions(one).await.unwrap();
            decisions[0].outcome.as_ref().is_some_and(|outcome| outcome.contains("5 processes ended"))
        };
        let mut ended = 0;
        while redrive(&inbox, &broker, &is_given_up).await {
            ended += 1;
            assert!(ended <= 6, "it goes on ending processes on request");
        }
    }
    assert!(DB::effects(&database.pool, "billing").await.is_empty());
}
