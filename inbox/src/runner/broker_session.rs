//! The subscription, made again after every loss.

use std::num::NonZeroUsize;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use message::{Backoff, Delivery, Fault, Runtime, Subscriber, Subscription, SubscriptionError};
use tokio::time::Instant;

use crate::error_text::error_text;

/// Maximum wait of one `receive`; it is cancelled when something else is due.
const RECEIVE_WAIT: Duration = Duration::from_secs(10);

type Made = Result<Box<dyn Subscription>, SubscriptionError>;

/// The subscriber of a consumer. It is called again after each loss.
#[derive(Clone)]
pub struct SubscriptionFactory(Arc<dyn Subscriber>);

impl SubscriptionFactory {
    /// Makes a factory from a subscriber. A panic in the subscriber becomes an error.
    pub fn new(subscriber: impl Subscriber) -> Self {
        Self(Arc::new(subscriber))
    }

    fn make(&self) -> BoxFuture<'static, Made> {
        let subscriber = Arc::clone(&self.0);
        let making = async move { subscriber.subscribe().await };
        let making = AssertUnwindSafe(making).catch_unwind();
        Box::pin(making.map(|made| made.unwrap_or_else(|_| Err(panicked()))))
    }
}

fn panicked() -> SubscriptionError {
    SubscriptionError::operator("the subscriber panicked; standard error has the message")
}

impl std::fmt::Debug for SubscriptionFactory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SubscriptionFactory")
    }
}

/// An event that the session reports.
pub(super) enum Event {
    Deliveries(Vec<Delivery>),
    Up,
    Lost,
}

pub(super) struct BrokerSession {
    factory: SubscriptionFactory,
    subscription: Option<Box<dyn Subscription>>,
    making: Option<BoxFuture<'static, Made>>,
    failures: u32,
    /// The error of the last session that was lost.
    error: String,
    retry_at: Instant,
    host: Runtime,
}

impl BrokerSession {
    pub(super) fn new(factory: SubscriptionFactory, host: Runtime) -> Self {
        let retry_at = Instant::now();
        Self { factory, subscription: None, making: None, failures: 0, error: String::new(), retry_at, host }
    }

    /// Returns the subscription, if there is one.
    pub(super) fn subscription(&mut self) -> Option<&mut Box<dyn Subscription>> {
        self.subscription.as_mut()
    }

    /// Returns the error with which the last session was lost, or could not be opened.
    pub(super) fn error(&self) -> &str {
        &self.error
    }

    /// Subscribes if necessary, or waits for deliveries. Without `max`, a subscribed session never
    /// returns. Cancel-safe.
    pub(super) async fn next(&mut self, max: Option<NonZeroUsize>) -> Event {
        match (self.subscription.as_mut(), max) {
            (Some(subscription), Some(max)) => match subscription.receive(max, RECEIVE_WAIT).await {
                Ok(deliveries) => {
                    self.failures = 0;
                    Event::Deliveries(deliveries)
                }
                Err(error) => {
                    self.lost(&error);
                    Event::Lost
                }
            },
            (Some(_), None) => std::future::pending().await,
            (None, _) => self.subscribe().await,
        }
    }

    async fn subscribe(&mut self) -> Event {
        tokio::time::sleep_until(self.retry_at).await;
        let factory = &self.factory;
        let making = self.making.get_or_insert_with(|| factory.make());
        let made = making.await;
        self.making = None;
        match made {
            Ok(subscription) => {
                tracing::info!(origin = subscription.origin(), "subscribed");
                self.subscription = Some(subscription);
                Event::Up
            }
            Err(error) => {
                self.lost(&error);
                Event::Lost
            }
        }
    }

    /// Drops the lost session and schedules the next attempt after a backoff.
    pub(super) fn lost(&mut self, error: &SubscriptionError) {
        self.subscription = None;
        self.failures = self.failures.saturating_add(1);
        let delay = Backoff::OUTAGES.delay(self.failures, self.host.uniform());
        self.retry_at = Instant::now() + delay;
        let text = error_text(error);
        self.error.clone_from(&text);
        if error.fault() == Fault::Operator || self.failures > 3 {
            tracing::error!(error = text, failures = self.failures, ?delay, "no subscription; trying again");
        } else {
            tracing::warn!(
                error = text,
                failures = self.failures,
                ?delay,
                "subscription lost; subscribing again"
            );
        }
    }

    /// Closes the subscription.
    pub(super) async fn close(self) -> Result<(), SubscriptionError> {
        match self.subscription {
            Some(subscription) => subscription.close().await,
            None => Ok(()),
        }
    }
}
