//! Consumes queues: each has a channel with a prefetch bound, one consumer, and manual
//! acknowledgements.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{BoxFuture, try_join_all};
use futures_util::stream::{self, BoxStream, SelectAll, StreamExt};
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Error};
use message::{Delivery, DeliveryToken, Disposition, Lag, Settlement, Subscription, SubscriptionError};
use tokio::time::Instant;
use uuid::Uuid;

use super::config::{Config, SHORT_BYTES_MAX, invalid};
use super::connection::Connection;
use super::consumer::Consumer;
use super::end::Earlier;
use super::endpoint::Endpoint;
use super::evidence;
use super::fault;
use super::lag;
use super::ledger::Ledger;
use super::publisher::GOODBYE;
use super::unopened::OpenFailure;
use super::wire;
use crate::lag::LagWatch;
use crate::settings::InvalidSetting;

/// Number of bits of the delivery tag, the lower part of a token. The upper bits are the channel,
/// numbered across all subscriptions: a token of an earlier one is recognized and ignored. At
/// 100,000 deliveries per second, 48 bits last for 89 years.
const TAG_BITS: u32 = 48;

/// Number of deliveries of one message at which a warning is logged: half of what RabbitMQ 4 allows
/// by default.
const DELIVERIES_WARNED: i64 = 10;

/// Counts the consuming channels of this process.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// Subscribes to queues, and again after every lost session. Each session begins when those that
/// were dropped before have ended, and their unsettled deliveries are back in the queues: they come
/// first again.
pub struct Subscriber {
    endpoint: Endpoint,
    queues: Vec<ShortString>,
    prefetch: u16,
    origin: String,
    earlier: Earlier,
}

impl Subscriber {
    /// Creates a subscriber of one or more queues, which must exist. Does not connect yet.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the setting, its value and the accepted values.
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
        Ok(Self { endpoint, queues, prefetch: config.prefetch, origin, earlier: Earlier::default() })
    }

    /// Opens a session on its own connection, after the end of the sessions of this subscriber that
    /// were dropped. Waits at most 2 s for that, and logs a warning if the broker did not confirm
    /// it within 1 s.
    ///
    /// # Errors
    /// [`SubscriptionError`] when the broker is unreachable, credentials are wrong, or a queue is
    /// missing or used exclusively. Cancel-safe: a dropped attempt consumes nothing.
    pub async fn subscribe(&self) -> Result<Box<dyn Subscription>, SubscriptionError> {
        if !self.earlier.ended().await {
            let origin = &self.origin;
            tracing::warn!(
                origin,
                "rabbitmq did not confirm the end of an earlier session; \
                until it notices that, later messages may overtake those of that session"
            );
        }
        let connection = self.endpoint.open("subscription").await?;
        self.earlier.add(connection.end());
        // Opened before messages arrive, which would wait for it.
        let mut spare = self.endpoint.in_time(connection.lasting_channel()).await.ok();
        let mut taken = Vec::new();
        for queue in &self.queues {
            let Some(channel) = &spare else { break };
            match self.endpoint.in_time(lag::look(channel, queue)).await {
                Ok(found) => taken.extend((found.consumer_count() > 0).then(|| queue.clone())),
                // A refusal closes the channel. If the queue is missing, consuming it says so.
                Err(_) => spare = None,
            }
        }
        let (lanes, consumers) = self.consume(&connection, &taken).await?;
        let lag = lag::watch(spare, &self.queues, &self.origin);
        Ok(Box::new(RabbitmqSubscription {
            origin: self.origin.clone(),
            connection: Arc::new(connection),
            lanes,
            consumers,
            received: Vec::new(),
            suspected: None,
            look: None,
            is_stopping: false,
            deliveries_max: 0,
            lag,
        }))
    }

    /// Consumes the queues, of which some are `taken`: others consume them already.
    async fn consume(
        &self,
        connection: &Connection,
        taken: &[ShortString],
    ) -> Result<(Vec<Lane>, Consumers), OpenFailure> {
        let mut channels = Vec::with_capacity(self.queues.len());
        for _ in &self.queues {
            let channel = self.endpoint.in_time(connection.lasting_channel()).await?;
            let bounded = channel.basic_qos(self.prefetch, BasicQosOptions { global: false });
            self.endpoint.in_time(connection.ask(bounded)).await?;
            channels.push(channel);
        }
        let (mut lanes, mut consumers) = (Vec::with_capacity(channels.len()), SelectAll::new());
        for (place, (queue, channel)) in self.queues.iter().zip(channels).enumerate() {
            let tag = ShortString::default();
            let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
            let consuming = channel.basic_consume(queue.clone(), tag, options, arguments);
            // Each has its own time limit: a long list must not fail the queues that are already
            // consumed.
            let consumer = self.endpoint.in_time(connection.ask(consuming)).await?;
            let generation = GENERATION.fetch_add(1, Ordering::Relaxed) << TAG_BITS;
            lanes.push(Lane {
                queue: queue.clone(),
                channel,
                consumer: Consumer::new(consumer.clone()),
                generation,
                ledger: Ledger::default(),
                is_seen: false,
                is_taken: taken.contains(queue),
            });
            let deliveries = consumer.map(move |delivery| match delivery {
                Ok(delivery) => Event::Delivery(place, Box::new(delivery)),
                Err(error) => Event::Failed(error),
            });
            let end = stream::once(async move { Event::Ended(place) });
            consumers.push(deliveries.chain(end).boxed());
        }
        Ok((lanes, consumers))
    }
}

/// Consumes a queue without a prefetch, which only a stream refuses: a message that a shovel took
/// out of a stream has the header of a stream's messages as well.
async fn look(connection: Arc<Connection>, queue: ShortString) -> Result<(), Error> {
    // The lowest priority leaves the deliveries of a queue to the real consumer as long as that has
    // room: it would get those of a key in another order.
    let mut arguments = FieldTable::default();
    arguments.insert("x-priority".into(), AMQPValue::LongInt(-128));
    let channel = connection.channel().await?;
    let (tag, options) = (ShortString::default(), BasicConsumeOptions::default());
    connection.ask(channel.basic_consume(queue, tag, options, arguments)).await?;
    // The queue takes back what the real consumer had no room for. Before that nothing is
    // acknowledged, or later messages would come first.
    connection.finish(&channel).await;
    Ok(())
}

type Consumers = SelectAll<BoxStream<'static, Event>>;

/// An event of a consumer, with the index of its lane.
enum Event {
    Delivery(usize, Box<lapin::message::Delivery>),
    Failed(Error),
    /// The broker cancelled the consumer: its queue was deleted or lost its leader.
    Ended(usize),
}

/// A queue and the channel that consumes it.
struct Lane {
    queue: ShortString,
    channel: Channel,
    consumer: Consumer,
    generation: u64,
    ledger: Ledger,
    /// Whether a delivery has arrived: the first one shows whether this is really a queue.
    is_seen: bool,
    /// Whether others consumed the queue before.
    is_taken: bool,
}

impl Lane {
    /// Whether the messages of the queue are other consumers': such as those of a queue with
    /// `x-single-active-consumer`, of which this one is a standby. The first delivery ends that.
    fn stands_by(&self) -> bool {
        self.is_taken && !self.is_seen
    }

    /// Returns the delivery tag of a token, if it is an unsettled one of this channel.
    fn tag(&self, token: DeliveryToken) -> Option<u64> {
        let tag = token.0 & ((1 << TAG_BITS) - 1);
        (token.0 == self.generation | tag && self.ledger.is_outstanding(tag)).then_some(tag)
    }
}

/// A consuming session.
struct RabbitmqSubscription {
    origin: String,
    connection: Arc<Connection>,
    lanes: Vec<Lane>,
    consumers: Consumers,
    /// Deliveries received by a call whose future was dropped, or before an error.
    received: Vec<Delivery>,
    /// The lane whose first delivery may come out of a stream, until the broker has said whether it
    /// is one. Nothing is handed out meanwhile.
    suspected: Option<usize>,
    /// The look that finds it out. It goes on with the next call if a call is dropped: a look that
    /// ended before its channel is closed would leave a consumer behind, to which the broker gives
    /// what the real one has no room for.
    look: Option<BoxFuture<'static, Result<(), Error>>>,
    /// Whether only the work in hand is still settled.
    is_stopping: bool,
    /// The highest delivery count of a message that was warned about.
    deliveries_max: i64,
    /// `None` if the broker opened no second channel.
    lag: Option<LagWatch>,
}

/// Returns how often a quorum queue delivered a message before this time (`x-delivery-count`); 0 if
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
    async fn accept(&mut self, event: Event) -> Result<(), SubscriptionError> {
        match event {
            Event::Delivery(place, delivery) => {
                let headers = delivery.properties.headers().as_ref().map(FieldTable::inner);
                let has_offset = headers.is_some_and(|headers| headers.contains_key("x-stream-offset"));
                self.open(place, *delivery);
                let Some(lane) = self.lanes.get_mut(place) else { return Ok(()) };
                if has_offset && !lane.is_seen {
                    self.suspected = Some(place);
                    return self.refuse_stream().await;
                }
                lane.is_seen = true;
                Ok(())
            }
            Event::Failed(error) => {
                self.silence();
                Err(fault::of_subscription(error))
            }
            Event::Ended(place) => {
                self.silence();
                let queue = self.lanes.get(place).map(|lane| lane.queue.as_str()).unwrap_or_default();
                let reason = "it was deleted, or it lost its leader";
                Err(SubscriptionError::lost(format!(
                    "rabbitmq cancelled the consumer of queue {queue}: {reason}"
                )))
            }
        }
    }

    /// Ends the subscription when the suspected queue is a stream. A stream is read from its end
    /// after every pause, so messages that arrive meanwhile would be skipped. Cancel-safe.
    async fn refuse_stream(&mut self) -> Result<(), SubscriptionError> {
        let lane = self.suspected.and_then(|place| self.lanes.get_mut(place));
        let Some(lane) = lane else { return Ok(()) };
        let queue = &lane.queue;
        let look =
            self.look.get_or_insert_with(|| Box::pin(look(Arc::clone(&self.connection), queue.clone())));
        let looked = look.await;
        self.look = None;
        match looked {
            Err(error) if fault::is_precondition(&error) => {
                let reason = format!(
                    "{queue} is a stream, not a queue: messages that arrive while this consumer is down would be skipped; bind a quorum queue to the same exchange, and consume from that"
                );
                self.silence();
                self.received.clear();
                Err(SubscriptionError::operator(reason))
            }
            Err(error) => Err(fault::of_subscription(error)),
            Ok(()) => {
                lane.is_seen = true;
                self.suspected = None;
                Ok(())
            }
        }
    }

    /// Takes over a delivery.
    fn open(&mut self, place: usize, delivery: lapin::message::Delivery) {
        let Some(lane) = self.lanes.get_mut(place) else { return };
        let (tag, queue, generation) = (delivery.delivery_tag, lane.queue.clone(), lane.generation);
        lane.ledger.hand_out(tag);
        self.warn_of_limit(&queue, &delivery.properties);
        let topic = if delivery.routing_key.as_str().is_empty() { &queue } else { &delivery.routing_key };
        let message = wire::decode(topic.as_str(), &delivery.properties, delivery.data);
        let message = message.map_err(|mut malformed| {
            malformed.properties.push((String::from("amqp.exchange"), delivery.exchange.to_string()));
            // RabbitMQ gives a message neither an id nor a position. One that it delivers for the
            // first time is different from all earlier ones, whatever it looks like.
            if !delivery.redelivered && !evidence::has_place(&delivery.properties) {
                malformed.first_arrival = Some(Uuid::now_v7());
            }
            *malformed
        });
        self.received.push(Delivery {
            token: DeliveryToken(generation | tag),
            message,
            redelivered: delivery.redelivered,
            // Without the tag: a malformed delivery must have the same hash when it is redelivered.
            origin: format!("queue {queue}"),
        });
    }

    /// Warns of a delivery limit. Quorum queues count deliveries, and drop or dead-letter a message
    /// after a number that AMQP does not show.
    fn warn_of_limit(&mut self, queue: &ShortString, properties: &BasicProperties) {
        let deliveries = delivery_count(properties);
        if deliveries >= DELIVERIES_WARNED && deliveries > self.deliveries_max {
            self.deliveries_max = deliveries;
            tracing::warn!(%queue, deliveries, "a message was redelivered many times; RabbitMQ 4 drops it after 20 deliveries: give the queue a dead-letter exchange or a higher delivery-limit");
        }
    }

    /// Takes no more deliveries from the client. They stay unsettled.
    fn silence(&mut self) {
        self.lanes.iter().for_each(|lane| lane.consumer.silence());
        self.consumers.clear();
    }

    fn lost(&self) -> SubscriptionError {
        SubscriptionError::lost(format!("the session of {} is closed; subscribe again", self.origin))
    }
}

/// Whether messages wait, and all of them in queues of which this consumer is a standby.
fn wait_for_others(lags: &[Lag], stands_by: impl Fn(&str) -> bool) -> bool {
    let mut waiting = lags.iter().filter(|lag| lag.messages > 0).peekable();
    waiting.peek().is_some() && waiting.all(|lag| stands_by(&lag.topic))
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
        self.refuse_stream().await?;
        while self.received.len() < max.get() {
            // Waits only for the first one, then takes all that have arrived.
            let next = if self.received.is_empty() {
                tokio::select! {
                    biased;
                    next = self.consumers.next() => next,
                    // The client may not have informed its consumers.
                    () = self.connection.passed() => None,
                    () = tokio::time::sleep_until(deadline) => break,
                }
            } else {
                match futures_util::poll!(self.consumers.next()) {
                    std::task::Poll::Ready(next) => next,
                    std::task::Poll::Pending => break,
                }
            };
            self.accept(next.ok_or_else(|| self.lost())?).await?;
        }
        let count = self.received.len().min(max.get());
        Ok(self.received.drain(..count).collect())
    }

    async fn settle(&mut self, settlements: Vec<Settlement>) -> Result<(), SubscriptionError> {
        let is_done = |one: &Settlement| *one.disposition() == Disposition::Done;
        let mut tokens: Vec<_> = settlements.iter().map(|one| (one.token(), is_done(one))).collect();
        // In ascending order, because the broker redelivers released messages at once.
        tokens.sort_unstable_by_key(|(token, _)| token.0);
        tokens.dedup_by_key(|(token, _)| token.0);
        for lane in &mut self.lanes {
            let tags = |wanted: bool| {
                let of_lane = tokens.iter().filter(|(_, is_done)| *is_done == wanted);
                of_lane.filter_map(|(token, _)| lane.tag(*token)).collect::<Vec<u64>>()
            };
            let done = tags(true);
            // A session that stops leaves them unsettled. Its end hands them back.
            let released = if self.is_stopping { Vec::new() } else { tags(false) };
            // Released tags first, so that no multiple acknowledgement covers them.
            for tag in released {
                lane.ledger.release(tag);
                let requeue = BasicNackOptions { multiple: false, requeue: true };
                let requeued = self.connection.ask(lane.channel.basic_nack(tag, requeue));
                requeued.await.map_err(fault::of_subscription)?;
            }
            let acks = lane.ledger.done(&done);
            if let Some(tag) = acks.up_to {
                let multiple = BasicAckOptions { multiple: true };
                let acknowledged = self.connection.ask(lane.channel.basic_ack(tag, multiple));
                acknowledged.await.map_err(fault::of_subscription)?;
            }
            let single = acks.single.into_iter().map(|tag| {
                let one = BasicAckOptions { multiple: false };
                lane.channel.basic_ack(tag, one)
            });
            self.connection.ask(try_join_all(single)).await.map_err(fault::of_subscription)?;
        }
        Ok(())
    }

    async fn keep_alive(&mut self, _tokens: &[DeliveryToken]) -> Result<(), SubscriptionError> {
        Ok(())
    }

    /// With the queues of which it is a standby: their active consumer may stand still, and may be
    /// one that reports nothing.
    fn lag(&self) -> Vec<Lag> {
        self.lag.as_ref().map(LagWatch::known).unwrap_or_default()
    }

    fn is_assigned(&self) -> Option<bool> {
        let stands_by =
            |queue: &str| self.lanes.iter().any(|lane| lane.stands_by() && lane.queue.as_str() == queue);
        wait_for_others(&self.lag(), stands_by).then_some(false)
    }

    /// Discards everything that arrives from now on, and hands nothing back before the session
    /// ends: see `consumer.rs`.
    async fn stop_receiving(&mut self) -> Result<(), SubscriptionError> {
        self.is_stopping = true;
        self.silence();
        self.received.clear();
        Ok(())
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

    /// Goal: a consumer that is active on one queue and a standby of another does not stall on the
    /// other's backlog, and does on its own. Oracle: for whom the messages wait.
    #[test]
    fn a_backlog_is_for_others_only_where_this_is_a_standby() {
        for (own, taken, is_others) in [(0, 0, false), (0, 7, true), (7, 7, false), (7, 0, false)] {
            let lags = [Lag::new("own", own), Lag::new("taken", taken)];
            assert_eq!(wait_for_others(&lags, |queue| queue == "taken"), is_others, "{own} {taken}");
        }
        assert!(!wait_for_others(&[], |_| true), "nothing is known yet");
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
