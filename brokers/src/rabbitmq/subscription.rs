//! Consuming queues: one channel with a prefetch bound, manual acknowledgements, one consumer per
//! queue.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use futures_util::stream::{self, BoxStream, SelectAll, StreamExt};
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Error};
use message::{Delivery, DeliveryToken, Disposition, Lag, Settlement, Subscription, SubscriptionError};
use tokio::time::Instant;
use uuid::Uuid;

use super::config::{Config, SHORT_BYTES_MAX, invalid};
use super::connection::Connection;
use super::endpoint::{Endpoint, OpenFailure};
use super::evidence;
use super::fault;
use super::lag;
use super::ledger::Ledger;
use super::publisher::GOODBYE;
use super::wire;
use crate::lag::LagWatch;
use crate::settings::InvalidSetting;

/// The lower bits of a token are the delivery tag, the upper ones the subscription: a token of an
/// earlier subscription is recognised and skipped. At 100,000 deliveries per second 48 bits last
/// for 89 years.
const TAG_BITS: u32 = 48;

/// Deliveries of one message before which nobody is warned: half of what RabbitMQ 4 allows by
/// default.
const DELIVERIES_WARNED: i64 = 10;

/// Counts the subscriptions of this process.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// Subscribes to queues, again after every lost session.
pub struct Subscriber {
    endpoint: Endpoint,
    queues: Vec<ShortString>,
    prefetch: u16,
    origin: String,
}

impl Subscriber {
    /// A subscriber of one or more queues, which must exist. Connects to nothing yet.
    ///
    /// # Errors
    /// [`InvalidSetting`] names the setting, its value and what is accepted.
    pub fn new<Q: Into<String>>(
        config: &Config,
        queues: impl IntoIterator<Item = Q>,
    ) -> Result<Self, InvalidSetting> {
        let short = |queue: Q| {
            let queue = queue.into();
            InvalidSetting::unless_name("rabbitmq", "queue", &queue, SHORT_BYTES_MAX)?;
            ShortString::try_new(queue).map_err(|error| invalid("queue", error.to_string()))
        };
        let queues = queues.into_iter().map(short).collect::<Result<Vec<_>, _>>()?;
        if queues.is_empty() {
            return Err(invalid("queues", "names no queue; name at least one"));
        }
        let endpoint = Endpoint::new(config)?;
        endpoint.warn();
        let names: Vec<&str> = queues.iter().map(ShortString::as_str).collect();
        let origin = format!("{} {}", endpoint.destination(), names.join(", "));
        Ok(Self { endpoint, queues, prefetch: config.prefetch, origin })
    }

    /// Opens a session: a connection of its own.
    ///
    /// # Errors
    /// [`SubscriptionError`]: unreachable, or wrong credentials, a missing or exclusively used
    /// queue.
    pub async fn subscribe(&self) -> Result<Box<dyn Subscription>, SubscriptionError> {
        let connection = self.endpoint.open("subscription").await?;
        let channel = self.endpoint.in_time(connection.channel()).await?;
        // Before messages come: they would wait for it.
        let spare = self.endpoint.in_time(connection.channel()).await.ok();
        let (tags, consumers) = self.consume(&connection, &channel).await?;
        let lag = lag::watch(spare, &self.queues, &self.origin);
        let generation = GENERATION.fetch_add(1, Ordering::Relaxed) << TAG_BITS;
        Ok(Box::new(RabbitmqSubscription {
            origin: self.origin.clone(),
            connection,
            channel,
            tags,
            consumers,
            generation,
            ledger: Ledger::default(),
            received: Vec::new(),
            deliveries_max: 0,
            lag,
        }))
    }

    async fn consume(
        &self,
        connection: &Connection,
        channel: &Channel,
    ) -> Result<(Vec<ShortString>, Consumers), OpenFailure> {
        // Over all consumers of the channel: RabbitMQ's meaning of `global`
        // (rabbitmq.com/docs/consumer-prefetch). Quorum queues know only the per-consumer bound,
        // which a single queue gets.
        let global = self.queues.len() > 1;
        let bounded = channel.basic_qos(self.prefetch, BasicQosOptions { global });
        self.endpoint.in_time(connection.ask(bounded)).await?;
        let (mut tags, mut consumers) = (Vec::new(), SelectAll::new());
        for queue in &self.queues {
            let tag = ShortString::default();
            let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
            let consuming = channel.basic_consume(queue.clone(), tag, options, arguments);
            // Each by itself: those that are consumed already must not pay for many queues.
            let consumer = self.endpoint.in_time(connection.ask(consuming)).await?;
            tags.push(consumer.tag());
            let (name, ended) = (queue.clone(), queue.clone());
            let deliveries = consumer.map(move |delivery| match delivery {
                Ok(delivery) => Event::Delivery(name.clone(), Box::new(delivery)),
                Err(error) => Event::Failed(error),
            });
            let end = stream::once(async move { Event::Ended(ended) });
            consumers.push(deliveries.chain(end).boxed());
        }
        Ok((tags, consumers))
    }
}

type Consumers = SelectAll<BoxStream<'static, Event>>;

/// An event of a consumer.
enum Event {
    Delivery(ShortString, Box<lapin::message::Delivery>),
    Failed(Error),
    /// The broker cancelled it: its queue is deleted or lost its leader.
    Ended(ShortString),
}

/// A session that consumes.
struct RabbitmqSubscription {
    origin: String,
    connection: Connection,
    channel: Channel,
    /// Of the consumers.
    tags: Vec<ShortString>,
    consumers: Consumers,
    generation: u64,
    ledger: Ledger,
    /// Received by a call whose future was dropped, or before an error.
    received: Vec<Delivery>,
    /// The most deliveries of one message that was warned of.
    deliveries_max: i64,
    /// None where the broker opened no second channel.
    lag: Option<LagWatch>,
}

/// How often a quorum queue has delivered a message before this time (`x-delivery-count`); 0 where
/// the queue does not count.
fn delivery_count(properties: &BasicProperties) -> i64 {
    let headers = properties.headers().as_ref().map(FieldTable::inner);
    match headers.and_then(|headers| headers.get("x-delivery-count")) {
        Some(AMQPValue::LongLongInt(count)) => *count,
        Some(AMQPValue::LongInt(count)) => (*count).into(),
        Some(AMQPValue::ShortInt(count)) => (*count).into(),
        Some(AMQPValue::ShortShortInt(count)) => (*count).into(),
        _ => 0,
    }
}

impl RabbitmqSubscription {
    fn accept(&mut self, event: Event) -> Result<(), SubscriptionError> {
        match event {
            Event::Delivery(queue, delivery) => {
                let delivery = self.open(&queue, *delivery);
                self.received.push(delivery);
                Ok(())
            }
            Event::Failed(error) => {
                self.consumers.clear();
                Err(fault::of_subscription(error))
            }
            Event::Ended(queue) => {
                self.consumers.clear();
                let reason = "it was deleted, or it lost its leader";
                Err(SubscriptionError::lost(format!(
                    "rabbitmq cancelled the consumer of queue {queue}: {reason}"
                )))
            }
        }
    }

    fn open(&mut self, queue: &ShortString, delivery: lapin::message::Delivery) -> Delivery {
        let tag = delivery.delivery_tag;
        self.ledger.hand_out(tag);
        self.warn_of_limit(queue, &delivery.properties);
        let topic = if delivery.routing_key.as_str().is_empty() { queue } else { &delivery.routing_key };
        let message = wire::decode(topic.as_str(), &delivery.properties, delivery.data);
        let message = message.map_err(|mut malformed| {
            malformed.properties.push((String::from("amqp.exchange"), delivery.exchange.to_string()));
            // RabbitMQ gives a message neither an id nor a place. One that it hands out for the
            // first time is another one than all before, whatever it looks like.
            if !delivery.redelivered && !evidence::has_place(&delivery.properties) {
                malformed.first_arrival = Some(Uuid::now_v7());
            }
            *malformed
        });
        Delivery {
            token: DeliveryToken(self.generation | tag),
            message,
            redelivered: delivery.redelivered,
            // Without the tag: the hash of a malformed delivery must be the same when it comes
            // again.
            origin: format!("queue {queue}"),
        }
    }

    /// Quorum queues count deliveries, and drop or dead-letter a message after a number that AMQP
    /// does not show.
    fn warn_of_limit(&mut self, queue: &ShortString, properties: &BasicProperties) {
        let deliveries = delivery_count(properties);
        if deliveries >= DELIVERIES_WARNED && deliveries > self.deliveries_max {
            self.deliveries_max = deliveries;
            tracing::warn!(%queue, deliveries, "a message was delivered again and again; RabbitMQ 4 drops it after 20 \
                deliveries: give the queue a dead-letter exchange or a higher delivery-limit");
        }
    }

    fn tag(&self, token: DeliveryToken) -> Option<u64> {
        let tag = token.0 & ((1 << TAG_BITS) - 1);
        (token.0 == self.generation | tag && self.ledger.is_outstanding(tag)).then_some(tag)
    }

    fn lost(&self) -> SubscriptionError {
        SubscriptionError::lost(format!("the session of {} is closed; subscribe anew", self.origin))
    }
}

#[async_trait]
impl Subscription for RabbitmqSubscription {
    fn origin(&self) -> &str {
        &self.origin
    }

    async fn receive(
        &mut self,
        max: NonZeroUsize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, SubscriptionError> {
        let deadline = Instant::now() + wait;
        while self.received.len() < max.get() {
            // Waits for the first one only, then takes what is there.
            let next = if self.received.is_empty() {
                tokio::select! {
                    biased;
                    next = self.consumers.next() => next,
                    // The client may have told its consumers nothing.
                    () = self.connection.passed() => None,
                    () = tokio::time::sleep_until(deadline) => break,
                }
            } else {
                match futures_util::poll!(self.consumers.next()) {
                    std::task::Poll::Ready(next) => next,
                    std::task::Poll::Pending => break,
                }
            };
            self.accept(next.ok_or_else(|| self.lost())?)?;
        }
        let count = self.received.len().min(max.get());
        Ok(self.received.drain(..count).collect())
    }

    async fn settle(&mut self, settlements: Vec<Settlement>) -> Result<(), SubscriptionError> {
        let (mut done, mut released) = (Vec::new(), Vec::new());
        for settlement in &settlements {
            let Some(tag) = self.tag(settlement.token()) else { continue };
            match settlement.disposition() {
                Disposition::Done => done.push(tag),
                _ => released.push(tag),
            }
        }
        done.sort_unstable();
        done.dedup();
        // First what goes back, so that no acknowledgement for many covers it; in ascending order,
        // because the broker delivers each one again at once.
        released.sort_unstable();
        released.dedup();
        for tag in released {
            self.ledger.release(tag);
            let requeue = BasicNackOptions { multiple: false, requeue: true };
            self.connection
                .ask(self.channel.basic_nack(tag, requeue))
                .await
                .map_err(fault::of_subscription)?;
        }
        let acks = self.ledger.done(&done);
        if let Some(tag) = acks.up_to {
            let multiple = BasicAckOptions { multiple: true };
            self.connection
                .ask(self.channel.basic_ack(tag, multiple))
                .await
                .map_err(fault::of_subscription)?;
        }
        let single = acks.single.into_iter().map(|tag| {
            let one = BasicAckOptions { multiple: false };
            self.channel.basic_ack(tag, one)
        });
        self.connection.ask(try_join_all(single)).await.map_err(fault::of_subscription)?;
        Ok(())
    }

    async fn keep_alive(&mut self, _tokens: &[DeliveryToken]) -> Result<(), SubscriptionError> {
        Ok(())
    }

    fn lag(&self) -> Vec<Lag> {
        self.lag.as_ref().map(LagWatch::known).unwrap_or_default()
    }

    /// Cancels the consumers, and hands back what waits in the client.
    async fn stop_receiving(&mut self) -> Result<(), SubscriptionError> {
        let (channel, options) = (&self.channel, BasicCancelOptions::default());
        let cancels = self.tags.drain(..).map(|tag| channel.basic_cancel(tag, options));
        match tokio::time::timeout(GOODBYE, self.connection.ask(try_join_all(cancels))).await {
            Ok(cancelled) => cancelled.map_err(fault::of_subscription)?,
            Err(_) => {
                let origin = &self.origin;
                let reason =
                    format!("{origin} did not confirm within {GOODBYE:?} that nothing more is delivered");
                return Err(SubscriptionError::lost(reason));
            }
        };
        while let std::task::Poll::Ready(Some(Event::Delivery(queue, delivery))) =
            futures_util::poll!(self.consumers.next())
        {
            let delivery = self.open(&queue, *delivery);
            self.received.push(delivery);
        }
        self.consumers.clear();
        let waiting = std::mem::take(&mut self.received);
        self.settle(waiting.iter().map(|delivery| Settlement::release(delivery.token)).collect()).await
    }

    async fn close(self: Box<Self>) -> Result<(), SubscriptionError> {
        if !self.connection.is_open() {
            return Err(self.lost());
        }
        self.connection.say_goodbye(Instant::now() + GOODBYE).await;
        Ok(())
    }
}

#[async_trait::async_trait]
impl message::Subscriber for Subscriber {
    async fn subscribe(&self) -> Result<Box<dyn Subscription>, SubscriptionError> {
        Self::subscribe(self).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deliveries_that_a_queue_has_counted_are_read_in_any_width() {
        let counted = |value| {
            let mut headers = FieldTable::default();
            headers.insert(ShortString::try_new("x-delivery-count").unwrap(), value);
            delivery_count(&BasicProperties::default().with_headers(headers))
        };
        assert_eq!(counted(AMQPValue::LongLongInt(12)), 12);
        assert_eq!(counted(AMQPValue::LongInt(3)), 3);
        assert_eq!(counted(AMQPValue::ShortShortInt(1)), 1);
        assert_eq!(counted(AMQPValue::Void), 0);
        assert_eq!(delivery_count(&BasicProperties::default()), 0);
    }

    #[test]
    fn at_least_one_queue_with_a_name_is_needed() {
        let config = Config::new("amqp://127.0.0.1");
        assert!(Subscriber::new(&config, ["orders", "bills"]).is_ok());
        for queues in [vec![], vec![String::new()], vec!["q".repeat(256)]] {
            assert!(Subscriber::new(&config, queues).err().unwrap().setting.starts_with("rabbitmq.queue"));
        }
    }
}
