//! Consumes a queue by long polls.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_sqs::types::{Message as Received, MessageSystemAttributeName};
use message::{Delivery, DeliveryToken, Disposition, Lag, Settlement, Subscription, SubscriptionError};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::client::ClientFactory;
use super::config::{Config, invalid, is_queue_name, is_url};
use super::evidence::Evidence;
use super::fault::Failure;
use super::lag;
use super::queues::{is_fifo, queue_name};
use super::receive::{Answer, Page, RECEIVE_MAX, ReceiveRequest};
use super::settle::Settler;
use super::wire;
use crate::lag::LagWatch;
use crate::settings::InvalidSetting;

/// Numbers the deliveries of this process, so that a token of an earlier subscription is
/// recognized.
static TOKENS: AtomicU64 = AtomicU64::new(1);

/// Messages in hand with which a consumer has enough to do for a while: then it asks for others
/// only when it has room for a whole answer. Each request costs.
const ENOUGH: usize = 10 * RECEIVE_MAX;

/// Subscribes to a queue, and again after every lost session.
#[derive(Debug)]
pub struct Subscriber {
    factory: ClientFactory,
    queue: String,
    visibility_timeout_secs: u32,
    poll_wait: Duration,
    receive_concurrency: usize,
    origin: String,
}

impl Subscriber {
    /// Creates a subscriber of one queue, by name or URL, which must exist. Does not connect yet.
    ///
    /// # Errors
    /// [`InvalidSetting`] with the setting, its value and the accepted values.
    pub fn new(config: &Config, queue: impl Into<String>) -> Result<Self, InvalidSetting> {
        let queue = queue.into();
        if !is_url(&queue) && !is_queue_name(&queue) {
            let problem = "is neither a URL nor a name of 1 to 80 letters, digits, - and _";
            return Err(invalid("queue", format!("{queue:?} {problem}")));
        }
        let factory = ClientFactory::new(config)?;
        factory.warn();
        let origin = format!("{} {}", factory.destination(), queue_name(&queue));
        Ok(Self {
            factory,
            visibility_timeout_secs: config.visibility_timeout_secs,
            poll_wait: Duration::from_secs(config.poll_wait_secs.into()),
            receive_concurrency: config.receive_concurrency,
            queue,
            origin,
        })
    }

    /// Opens a session.
    ///
    /// # Errors
    /// [`SubscriptionError`] when SQS is unreachable, credentials are wrong, or the queue is
    /// missing or forbidden.
    pub async fn subscribe(&self) -> Result<Box<dyn Subscription>, SubscriptionError> {
        let client = self.factory.client().await?;
        let name = queue_name(&self.queue).to_owned();
        let failed = |failure: Failure| failure.to_subscription_error(&name);
        let url = self.factory.queues().url(&client, &self.queue).await.map_err(failed)?;
        Ok(Box::new(SqsSubscription {
            lag: lag::watch(client.clone(), url.clone(), &name, &self.origin),
            factory: self.factory.clone(),
            request: ReceiveRequest {
                client,
                url,
                // At most 43,200, checked with the settings.
                visibility_timeout_secs: i32::try_from(self.visibility_timeout_secs).unwrap_or(i32::MAX),
            },
            visibility_timeout: Duration::from_secs(self.visibility_timeout_secs.into()),
            poll_wait: self.poll_wait,
            concurrency: self.receive_concurrency,
            origin: self.origin.clone(),
            name,
            polls: JoinSet::new(),
            asked: 0,
            busy: false,
            is_empty: false,
            pages: VecDeque::new(),
            receipts: HashMap::new(),
        }))
    }
}

/// A consuming session.
struct SqsSubscription {
    factory: ClientFactory,
    request: ReceiveRequest,
    visibility_timeout: Duration,
    /// Maximum time that SQS may hold a receive request.
    poll_wait: Duration,
    concurrency: usize,
    origin: String,
    name: String,
    /// Requests in flight, even between two calls.
    polls: JoinSet<Answer>,
    /// How many messages they have asked for.
    asked: usize,
    /// Whether the last request came back full: then several at once pay off.
    busy: bool,
    /// Whether the last request came back empty.
    is_empty: bool,
    /// Responses that were received but not yet handed out.
    pages: VecDeque<Page>,
    receipts: HashMap<DeliveryToken, String>,
    lag: LagWatch,
}

impl SqsSubscription {
    fn settler(&self) -> Settler {
        let patience = self.visibility_timeout / 3;
        Settler { client: self.request.client.clone(), url: self.request.url.clone(), patience }
    }

    /// Keeps as many requests in flight as `max` messages need: one while the queue is quiet. They
    /// ask for no more than that: SQS counts each receive, also of a message that nobody has room
    /// for, and moves it to the queue's dead-letter queue after a number of them.
    fn poll(&mut self, max: NonZeroUsize, wait: Duration) {
        let requests_max = if self.busy { self.concurrency } else { 1 };
        // SQS counts in seconds; a request outlives a shorter call and serves the next one.
        let whole_secs = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let wait = Duration::from_secs(whole_secs).clamp(Duration::from_secs(1), self.poll_wait);
        while self.polls.len() < requests_max {
            let messages = max.get().saturating_sub(self.asked).min(RECEIVE_MAX);
            let has_enough = self.receipts.len() >= ENOUGH && messages < RECEIVE_MAX;
            if messages == 0 || has_enough {
                break;
            }
            self.asked += messages;
            self.polls.spawn(self.request.clone().run(messages, wait, self.factory.timeouts(wait)));
        }
    }

    fn accept(&mut self, finished: Result<Answer, JoinError>) -> Result<(), SubscriptionError> {
        let Answer { asked, page } = finished.map_err(|error| {
            let reason = format!("a receive request of {} failed because of a bug", self.origin);
            SubscriptionError::lost(reason).with_source(error)
        })?;
        self.asked = self.asked.saturating_sub(asked);
        let page = page.map_err(|failure| self.failed(&failure))?;
        self.busy = page.messages.len() >= asked;
        self.is_empty = page.messages.is_empty();
        if !self.is_empty {
            self.pages.push_back(page);
        }
        Ok(())
    }

    /// Hands out up to `max` messages. Drops a response that has waited for half its visibility
    /// timeout without being kept alive: SQS would redeliver its messages before they are handled.
    fn hand_out(&mut self, max: NonZeroUsize) -> Vec<Delivery> {
        let stale = self.visibility_timeout / 2;
        self.pages.retain(|page| page.hidden_at.elapsed() < stale);
        let mut deliveries = Vec::new();
        while deliveries.len() < max.get()
            && let Some(page) = self.pages.front_mut()
        {
            if page.messages.is_empty() {
                self.pages.pop_front();
                continue;
            }
            let message = page.messages.remove(0);
            deliveries.push(self.open(message));
        }
        deliveries
    }

    /// Waits for the next answer; until the deadline if there is no request. Cancel-safe.
    async fn next_answer(&mut self, deadline: Instant) -> Option<Result<Answer, JoinError>> {
        if self.polls.is_empty() {
            tokio::time::sleep_until(deadline).await;
            return None;
        }
        tokio::time::timeout_at(deadline, self.polls.join_next()).await.ok().flatten()
    }

    fn open(&mut self, mut message: Received) -> Delivery {
        let token = DeliveryToken(TOKENS.fetch_add(1, Ordering::Relaxed));
        let count = message.attributes().and_then(|attributes| {
            attributes.get(&MessageSystemAttributeName::ApproximateReceiveCount)?.parse::<u64>().ok()
        });
        let attributes = message.message_attributes().into_iter().flatten();
        let attributes =
            attributes.filter_map(|(name, value)| Some((name.clone(), value.string_value()?.to_owned())));
        let mut attributes: Vec<(String, String)> = attributes.collect();
        attributes.sort_unstable();
        if let Some(receipt) = message.receipt_handle.take() {
            self.receipts.insert(token, receipt);
        }
        let decoded = wire::decode(&self.name, message.body.take().unwrap_or_default(), attributes);
        let decoded = decoded.map_err(|mut malformed| {
            let Evidence { properties, notes } = Evidence::of(&message);
            malformed.properties.extend(properties);
            malformed.broker_notes = notes;
            *malformed
        });
        Delivery {
            token,
            message: decoded,
            redelivered: count.is_some_and(|count| count > 1),
            origin: format!("queue {}", self.name),
        }
    }

    fn failed(&self, failure: &Failure) -> SubscriptionError {
        failure.to_subscription_error(&self.name)
    }
}

#[async_trait]
impl Subscription for SqsSubscription {
    fn origin(&self) -> &str {
        &self.origin
    }

    async fn receive(
        &mut self,
        max: NonZeroUsize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, SubscriptionError> {
        let deadline = Instant::now() + wait;
        loop {
            let deliveries = self.hand_out(max);
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
            self.poll(max, deadline.saturating_duration_since(Instant::now()));
            let Some(finished) = self.next_answer(deadline).await else { return Ok(Vec::new()) };
            self.accept(finished)?;
            // Accepts other answers that have arrived meanwhile.
            while let Some(finished) = self.polls.try_join_next() {
                self.accept(finished)?;
            }
        }
    }

    async fn settle(&mut self, settlements: Vec<Settlement>) -> Result<(), SubscriptionError> {
        let (mut done, mut released) = (Vec::new(), Vec::new());
        for settlement in &settlements {
            let Some(receipt) = self.receipts.remove(&settlement.token()) else { continue };
            match settlement.disposition() {
                Disposition::Done => done.push(receipt),
                _ => released.push(receipt),
            }
        }
        let settler = self.settler();
        settler.delete(done).await.map_err(|failure| self.failed(&failure))?;
        settler.hide(released, 0).await.map_err(|failure| self.failed(&failure))
    }

    fn redelivers_after(&self) -> Option<Duration> {
        Some(self.visibility_timeout)
    }

    async fn keep_alive(&mut self, tokens: &[DeliveryToken]) -> Result<(), SubscriptionError> {
        let mut receipts: Vec<String> =
            tokens.iter().filter_map(|token| self.receipts.get(token).cloned()).collect();
        // Those that a dropped call has asked for wait for room.
        let waiting = self.pages.iter().flat_map(|page| &page.messages);
        receipts.extend(waiting.filter_map(|message| message.receipt_handle.clone()));
        let (seconds, now) = (self.request.visibility_timeout_secs, Instant::now());
        self.settler().hide(receipts, seconds).await.map_err(|failure| self.failed(&failure))?;
        self.pages.iter_mut().for_each(|page| page.hidden_at = now);
        Ok(())
    }

    fn lag(&self) -> Vec<Lag> {
        self.lag.known()
    }

    /// A FIFO queue gives out no message of a group of which another consumer has one in hand.
    fn is_assigned(&self) -> Option<bool> {
        let is_waiting = self.lag.known().iter().any(|lag| lag.messages > 0);
        (is_fifo(&self.name) && self.is_empty && is_waiting).then_some(false)
    }

    async fn close(mut self: Box<Self>) -> Result<(), SubscriptionError> {
        // A request that is cut off would still take messages, and hide them until their visibility
        // timeout expires. Each ends by itself within the poll's wait and the request's timeout.
        while let Some(finished) = self.polls.join_next().await {
            if let Err(error) = self.accept(finished) {
                tracing::debug!(%error, origin = self.origin, "a last receive request failed while closing");
            }
        }
        // These are no longer handled: other consumers do not have to wait for their visibility
        // timeout.
        let unseen = self.pages.drain(..).flat_map(|page| page.messages);
        let mut receipts: Vec<String> = unseen.filter_map(|message| message.receipt_handle).collect();
        receipts.extend(self.receipts.drain().map(|(_, receipt)| receipt));
        self.settler().hide(receipts, 0).await.map_err(|failure| self.failed(&failure))
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
    fn a_queue_is_given_by_name_or_url() {
        let config = Config::default();
        for queue in ["orders", "orders.fifo", "https://sqs.eu-central-1.amazonaws.com/1/orders"] {
            assert!(Subscriber::new(&config, queue).unwrap().origin.contains("orders"));
        }
        assert_eq!(Subscriber::new(&config, "or.ders").unwrap_err().setting, "sqs.queue");
    }
}
