//! A consumer that notes when its transaction has committed: it settles deliveries right after.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use brokers::kafka::{GroupConfig, Subscriber};
use inbox::{Consumer, ConsumerName, Handler, HandlerError, Inbox, InboxOptions, RunError, Shutdown, Tx};
use message::{Delivery, DeliveryToken, Disposition, Message, Settlement, Subscription, SubscriptionError};
use sqlx::Postgres;
use tokio::task::JoinHandle;

use super::clock::{Clock, Moment, UNMEASURED, number};
use crate::Failure;
use crate::rig::Database;
use crate::target::Kafka;

/// Maximum number of messages in a transaction: those that have arrived meanwhile share a commit.
const BATCH: usize = 200;

pub(super) async fn start(
    database: &Database,
    kafka: &Kafka,
    topic: &str,
    clock: Arc<Clock>,
) -> Result<(JoinHandle<Result<(), RunError>>, Shutdown), Failure> {
    let pool = outbox::pool::<Postgres>(&database.url).await?;
    let inbox = Inbox::open(pool, InboxOptions::default()).await?;
    let group: GroupConfig = serde_json::from_value(
        serde_json::json!({ "group": topic, "topics": [topic], "start": "earliest" }),
    )?;
    let subscriber = Arc::new(Subscriber::new(kafka.config()?, group)?);
    let batch = NonZeroUsize::new(BATCH).ok_or("no batch")?;
    let consumer = Consumer::builder(inbox, ConsumerName::new("bench")?)
        .subscribe(move || {
            let (subscriber, clock) = (Arc::clone(&subscriber), Arc::clone(&clock));
            async move {
                let inner = subscriber.subscribe().await?;
                Ok(Box::new(Timed { inner, clock, numbers: HashMap::new() }) as Box<dyn Subscription>)
            }
        })
        .handler(Effect)
        .batch(batch)
        .prefetch(batch.saturating_mul(NonZeroUsize::MIN.saturating_add(3)))
        .build()?;
    let shutdown = Shutdown::new();
    Ok((tokio::spawn(consumer.run(shutdown.clone())), shutdown))
}

struct Effect;

#[async_trait]
impl Handler<Postgres> for Effect {
    async fn handle(
        &self,
        tx: &mut Tx<Postgres>,
        message: &Message,
    ) -> Result<Option<Vec<u8>>, HandlerError> {
        let number = number(message).ok_or_else(|| HandlerError::reject("no number"))?;
        if number != UNMEASURED {
            sqlx::query("INSERT INTO effect (id) VALUES ($1)")
                .bind(number.cast_signed())
                .execute(&mut **tx)
                .await?;
        }
        Ok(None)
    }
}

struct Timed {
    inner: Box<dyn Subscription>,
    clock: Arc<Clock>,
    numbers: HashMap<DeliveryToken, u64>,
}

#[async_trait]
impl Subscription for Timed {
    fn origin(&self) -> &str {
        self.inner.origin()
    }

    async fn receive(
        &mut self,
        max: NonZeroUsize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, SubscriptionError> {
        let deliveries = self.inner.receive(max, wait).await?;
        for delivery in &deliveries {
            if let Some(number) = delivery.message.as_ref().ok().and_then(number) {
                self.numbers.insert(delivery.token, number);
            }
        }
        Ok(deliveries)
    }

    async fn settle(&mut self, settlements: Vec<Settlement>) -> Result<(), SubscriptionError> {
        let at = Instant::now();
        for settlement in settlements.iter().filter(|one| *one.disposition() == Disposition::Done) {
            if let Some(number) = self.numbers.remove(&settlement.token()) {
                self.clock.note(number, Moment::Consumed, at);
            }
        }
        self.inner.settle(settlements).await
    }

    async fn keep_alive(&mut self, tokens: &[DeliveryToken]) -> Result<(), SubscriptionError> {
        self.inner.keep_alive(tokens).await
    }

    fn redelivers_after(&self) -> Option<Duration> {
        self.inner.redelivers_after()
    }

    async fn stop_receiving(&mut self) -> Result<(), SubscriptionError> {
        self.inner.stop_receiving().await
    }

    async fn close(self: Box<Self>) -> Result<(), SubscriptionError> {
        self.inner.close().await
    }
}
