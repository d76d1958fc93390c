//! A consumer whose keep-alive interval is too long for its broker.

use std::num::NonZeroUsize;
use std::time::Duration;

use async_trait::async_trait;
use inbox::{Consumer, RunError, Shutdown};
use message::{Delivery, DeliveryToken, Settlement, Subscription, SubscriptionError};

use super::consumer;
use super::database::{Database, TestDatabase};
use super::runner::Effect;

tests::cases! { "inbox/keep_alive/{on}/{case}":
    every { a_keep_alive_that_comes_too_late_is_refused_at_the_start }
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
