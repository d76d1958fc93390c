//! A consumer whose keep-alive interval is too long for its broker, and one whose broker or
//! database does not answer.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use inbox::{Consumer, HandlerError, Inbox, RunError, Shutdown};
use message::{Delivery, DeliveryToken, Settlement, Subscription, SubscriptionError};
use sqlx::Postgres;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Semaphore;

use super::broker::Broker;
use super::database::{Database, TestDatabase};
use super::runner::{Effect, builder};
use super::{consumer, message};

tests::cases! { "inbox/keep_alive/{on}/{case}":
    every {
        a_keep_alive_that_comes_too_late_is_refused_at_the_start,
        an_abort_leaves_a_broker_that_does_not_answer,
    }
    on_postgres { a_stop_waits_for_no_note_of_a_silent_database_on_postgres }
}

/// An empty queue that redelivers unsettled messages after ten seconds.
struct Impatient;

#[async_trait]
impl Subscription for Impatient {
    fn origin(&self) -> &str {
        "queue impatient"
    }

    async fn receive(&mut self, _: NonZeroUsize, wait: Duration) -> Result<Vec<Delivery>, SubscriptionError> {
        tokio::time::sleep(wait).await;
        Ok(Vec::new())
    }

    async fn settle(&mut self, _: Vec<Settlement>) -> Result<(), SubscriptionError> {
        Ok(())
    }

    async fn keep_alive(&mut self, _: &[DeliveryToken]) -> Result<(), SubscriptionError> {
        Ok(())
    }

    fn redelivers_after(&self) -> Option<Duration> {
        Some(Duration::from_secs(10))
    }

    async fn close(self: Box<Self>) -> Result<(), SubscriptionError> {
        Ok(())
    }
}

async fn a_keep_alive_that_comes_too_late_is_refused_at_the_start<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    let run = |interval: Duration, shutdown: Shutdown| {
        Consumer::builder(inbox.clone(), consumer("billing"))
            .subscribe(|| async { Ok(Box::new(Impatient) as Box<dyn Subscription>) })
            .handler(Effect::<DB>::works())
            .keep_alive_interval(interval)
            .build()
            .unwrap()
            .run(shutdown)
    };
    let refused = run(Duration::from_secs(6), Shutdown::new()).await.unwrap_err();
    assert!(matches!(refused, RunError::KeepAliveTooSeldom { .. }), "{refused:?}");
    let text = refused.to_string();
    assert!(["queue impatient", "6s", "10s", "at most 5s"].iter().all(|part| text.contains(part)), "{text}");
    let shutdown = Shutdown::new();
    shutdown.graceful.cancel();
    run(Duration::from_secs(5), shutdown).await.unwrap();
}

/// The call to the broker that gets no answer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Silent {
    Settle,
    KeepAlive,
    StopReceiving,
    Close,
}

/// A queue in memory, one of whose calls never ends and signals when it begins.
struct Hanging {
    session: Box<dyn Subscription>,
    silent: Silent,
    begun: Arc<Semaphore>,
}

impl Hanging {
    async fn hang(&mut self, call: Silent) {
        if call == self.silent {
            self.begun.add_permits(1);
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl Subscription for Hanging {
    fn origin(&self) -> &str {
        "memory"
    }

    async fn receive(
        &mut self,
        max: NonZeroUsize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, SubscriptionError> {
        self.session.receive(max, wait).await
    }

    async fn settle(&mut self, settlements: Vec<Settlement>) -> Result<(), SubscriptionError> {
        self.hang(Silent::Settle).await;
        self.session.settle(settlements).await
    }

    async fn keep_alive(&mut self, tokens: &[DeliveryToken]) -> Result<(), SubscriptionError> {
        self.hang(Silent::KeepAlive).await;
        self.session.keep_alive(tokens).await
    }

    async fn stop_receiving(&mut self) -> Result<(), SubscriptionError> {
        self.hang(Silent::StopReceiving).await;
        self.session.stop_receiving().await
    }

    async fn close(mut self: Box<Self>) -> Result<(), SubscriptionError> {
        self.hang(Silent::Close).await;
        self.session.close().await
    }
}

/// Goal: `Shutdown::abort` ends a consumer whatever its adapter waits for. Oracle: the end of the
/// consumer, for each call that gets no answer.
async fn an_abort_leaves_a_broker_that_does_not_answer<DB: TestDatabase>(database: &Database<DB>) {
    let inbox = database.inbox().await;
    for silent in [Silent::Settle, Silent::KeepAlive, Silent::StopReceiving, Silent::Close] {
        let broker = Broker::new([message(&format!("{silent:?}"))]);
        let begun = Arc::new(Semaphore::new(0));
        let effect = match silent {
            // It stays in hand.
            Silent::KeepAlive => Effect::new(|_, _| Err(HandlerError::unavailable("not now"))),
            _ => Effect::works(),
        };
        let source = (broker.clone(), Arc::clone(&begun));
        let consumer = builder::<DB>(&inbox, &broker, effect).subscribe(move || {
            let session = source.0.subscribe();
            let hanging = Hanging { session, silent, begun: Arc::clone(&source.1) };
            async move { Ok(Box::new(hanging) as Box<dyn Subscription>) }
        });
        let shutdown = Shutdown::new();
        let running = tokio::spawn(consumer.build().unwrap().run(shutdown.clone()));
        if matches!(silent, Silent::StopReceiving | Silent::Close) {
            broker.settled_at_least(1).await;
            shutdown.graceful.cancel();
        }
        begun.acquire().await.unwrap().forget();
        shutdown.abort.cancel();
        let ended = tokio::time::timeout(Duration::from_secs(60), running).await;
        let ended = ended.unwrap_or_else(|_| panic!("{silent:?}: the abort changed nothing")).unwrap();
        let is_aborted = matches!(ended, Err(RunError::Aborted { .. }));
        let leaves_unsettled = matches!(silent, Silent::Settle | Silent::KeepAlive);
        assert_eq!(is_aborted, leaves_unsettled, "{silent:?}: {ended:?}");
    }
}

/// Goal: a stop does not wait for notes of messages in hand while the database does not answer.
/// Oracle: the time until the consumer ends, far below the limit of a call.
async fn a_stop_waits_for_no_note_of_a_silent_database_on_postgres(database: &Database<Postgres>) {
    let calls = Duration::from_secs(300);
    let options = (*database.pool.connect_options()).clone();
    let pool = PgPoolOptions::new().max_connections(1).acquire_timeout(calls);
    let pool = pool.connect_with(options).await.unwrap();
    let inbox = Inbox::open(pool.clone(), database.options().call_timeout(calls)).await.unwrap();
    // A message that is delivered again waits for a connection to note that it is in hand.
    let broker = Broker::new([message("one")]);
    let connection = pool.acquire().await.unwrap();
    let consumer = builder::<Postgres>(&inbox, &broker, Effect::works());
    let consumer = consumer.maintain_interval(None).redrive_interval(None).build().unwrap();
    let shutdown = Shutdown::new();
    let running = tokio::spawn(consumer.run(shutdown.clone()));
    broker.in_hand(1).await;
    // The worker begins at once; nothing shows when it waits.
    tokio::time::sleep(Duration::from_millis(500)).await;
    shutdown.graceful.cancel();
    tokio::time::timeout(Duration::from_secs(60), running).await.unwrap().unwrap().unwrap();
    drop(connection);
    assert_eq!(broker.counts().1, 1, "it was handed back");
}
