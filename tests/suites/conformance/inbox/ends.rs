//! Messages that end the process of their consumer: they are counted and dead-lettered, but no
//! other message is.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use crate::inbox::broker::Broker;
use crate::inbox::chunks::chunks_of;
use crate::inbox::database::{Database, TestDatabase};
use crate::inbox::failures::{BATCHES, dead_letters, in_batches};
use crate::inbox::held_keys::signature;
use crate::inbox::runner::{Effect, builder, start};
use crate::inbox::{keyed, message};
use async_trait::async_trait;
use inbox::{
    AfterDeadLetter, Consumer, Dialect, Handler, HandlerError, Inbox, Reason, RedriveOptions, Signature, Tx,
};
use message::{Message, OrderingKey};
use tokio::sync::watch;

tests::cases! { "inbox/ends/{on}/{case}":
    every {
        a_message_that_ends_its_process_is_given_up_alone,
        a_message_in_chunks_that_ends_its_process_is_given_up_whole,
        duplicates_before_a_message_that_ends_its_process_do_not_hide_it,
        a_redrive_that_ends_its_process_is_given_up,
    }
}

const ENDS: &[u8] = b"ends its process";

/// Deliveries that a process has in hand at once.
const PREFETCH: NonZeroUsize = NonZeroUsize::new(4).unwrap();

/// Reports when it has the one message that ends its process. From then on it finishes no other
/// message.
#[derive(Clone)]
struct Ending {
    in_hand: Arc<watch::Sender<bool>>,
}

#[async_trait]
impl<DB: TestDatabase + Dialect> Handler<DB> for Ending {
    async fn handle(&self, tx: &mut Tx<DB>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        if message.payload.starts_with(ENDS) {
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

/// Runs a process of the consumer until it ends with the message in hand, or until nothing is left.
/// Returns whether it ended.
async fn live<DB: TestDatabase>(inbox: &Inbox<DB>, broker: &Broker, batch: Option<NonZeroUsize>) -> bool {
    let (source, in_hand) = (broker.clone(), Arc::new(watch::channel(false).0));
    let mut has_ended = in_hand.subscribe();
    let consumer = Consumer::builder(inbox.clone(), "billing")
        .subscribe(move || {
            let broker = source.clone();
            async move { Ok(broker.subscribe()) }
        })
        .handler(Ending { in_hand })
        .after_dead_letter(AfterDeadLetter::HoldKey)
        .prefetch(PREFETCH)
        .concurrency(PREFETCH);
    let running = tokio::spawn(in_batches(consumer, batch).run(std::future::pending::<()>()));
    let is_over = tokio::select! {
        ended = has_ended.wait_for(|in_hand| *in_hand) => ended.is_ok(),
        () = broker.drained() => false,
    };
    running.abort();
    assert!(running.await.is_err(), "it ran until then");
    is_over
}

/// Goal: a message whose handler ends its process (an abort, no memory left) ends a bounded number
/// of processes, even if the broker does not mark redeliveries. No message that was in hand beside
/// it is dead-lettered. Oracle: the processes that ended, the one dead letter, the effects.
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

/// Goal: a message in chunks whose handler ends its process is dead-lettered like any other, as a
/// whole, and holds its key. It does not matter whether the broker brings back all of its chunks,
/// as Kafka does after a lost offset, or only the last one. Oracle: the processes that ended, the
/// dead letters, no effect.
async fn a_message_in_chunks_that_ends_its_process_is_given_up_whole<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    for (brings_all, is_told) in [(true, false), (false, true)] {
        let key = format!("all {brings_all}");
        let whole = keyed(&key, &format!("ends its process {}", "x".repeat(5_000)));
        let behind = keyed(&key, "behind");
        let deliveries = || chunks_of(&whole).into_iter().chain([behind.clone()]);
        let mut broker = Broker::new(deliveries());
        let mut ended = 0;
        loop {
            if !is_told {
                broker.says_nothing_of_redeliveries();
            }
            if !live(&inbox, &broker, None).await {
                break;
            }
            ended += 1;
            assert!(ended <= 6, "it goes on ending processes");
            if brings_all {
                broker = Broker::new(deliveries());
            }
        }
        let dead = dead_letters(&inbox).await;
        let dead: Vec<_> = dead.iter().filter(|letter| letter.key.as_deref() == Some(key.as_str())).collect();
        let [letter, held] = &dead[..] else { panic!("{dead:?}") };
        assert_eq!((letter.reason, held.reason), (Reason::Poison, Reason::Held));
        assert_eq!(letter.payload, whole.payload, "the whole message");
        assert!(letter.error.contains("5 processes ended"), "{}", letter.error);
        assert!(inbox.incomplete(NonZeroU32::MAX).await.unwrap().is_empty(), "its chunks are forgotten");
        assert!(DB::effects(&database.pool, "billing").await.is_empty());
    }
}

/// Goal: a message that ends its process is counted and dead-lettered even if the broker
/// redelivers, unmarked, many settled messages before it. Kafka does: its offset stays at the
/// oldest message that is not settled. Oracle: the processes that ended, the one dead letter.
async fn duplicates_before_a_message_that_ends_its_process_do_not_hide_it<DB: TestDatabase>(
    database: &Database<DB>,
) {
    let inbox = database.inbox().await;
    let settled: Vec<Message> = (0..5 * PREFETCH.get()).map(|number| message(&number.to_string())).collect();
    let broker = Broker::new(settled.clone());
    let running = start(builder(&inbox, &broker, Effect::works()));
    broker.drained().await;
    running.stop().await;
    for batch in BATCHES {
        let ends = message("ends its process");
        let mut ended = 0;
        loop {
            let broker = Broker::new(settled.iter().cloned().chain([ends.clone()]));
            broker.says_nothing_of_redeliveries();
            if !live(&inbox, &broker, batch).await {
                break;
            }
            ended += 1;
            assert!(ended <= 6, "it goes on ending processes");
        }
        let dead = dead_letters(&inbox).await;
        let [letter] = &dead[..] else { panic!("{dead:?}") };
        assert_eq!((letter.reason, &letter.payload[..]), (Reason::Poison, ENDS));
        assert_eq!(DB::effects(&database.pool, "billing").await.len(), settled.len());
        inbox.discard(letter.id, &signature()).await.unwrap();
    }
}

/// Rejects one message, ends its process with another, and applies the rest.
#[derive(Clone)]
struct Redriven(Ending);

#[async_trait]
impl<DB: TestDatabase + Dialect> Handler<DB> for Redriven {
    async fn handle(&self, tx: &mut Tx<DB>, message: &Message) -> Result<Option<Vec<u8>>, HandlerError> {
        match &message.payload[..] {
            b"is rejected" => Err(HandlerError::reject("no such price")),
            _ => self.0.handle(tx, message).await,
        }
    }
}

/// Runs a process of the consumer that redrives, until it ends with a message in hand or `is_done`
/// holds. Returns whether it ended.
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

/// Goal: a dead letter whose handler ends its process ends a bounded number of processes when it is
/// redriven, on request or in its turn. Oracle: the processes that ended, the outcome of the
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

    // Redriven in its turn.
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

    // Redriven on request; each request begins a new count.
    for _ in 0..2 {
        inbox.request_redrive(held, RedriveOptions::default(), &signature).await.unwrap();
        let one = NonZeroU32::MIN;
        let is_given_up = async || {
            let decisions = inbox.decisions(one).await.unwrap();
            decisions[0].subject.outcome.as_ref().is_some_and(|outcome| outcome.contains("5 processes ended"))
        };
        let mut ended = 0;
        while redrive(&inbox, &broker, &is_given_up).await {
            ended += 1;
            assert!(ended <= 6, "it goes on ending processes on request");
        }
    }
    assert!(DB::effects(&database.pool, "billing").await.is_empty());
}
