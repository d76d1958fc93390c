//! A broker behind which a test or a benchmark sees each message and each answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use message::{
    Capabilities, Connector, Message, PublishError, Publisher, Receipts, Submission, Ticket, Unrouted,
};

/// An observer of the messages that pass through a [`Watched`] connector. Called by its publisher
/// and, for answers, by the threads of the broker's client: must not block.
pub trait Watch: Send + Sync + 'static {
    /// A session was opened.
    fn connected(&self) {}

    /// A message is about to be passed on.
    ///
    /// # Errors
    /// The answer to give instead of passing it on.
    fn submitted(&self, message: &Message) -> Result<(), PublishError> {
        let _ = message;
        Ok(())
    }

    /// The broker has answered a message that was passed on.
    fn answered(&self, message: &Arc<Message>, outcome: &Result<(), PublishError>);
}

/// A connector that passes everything on to another one, under a watch.
pub struct Watched<W> {
    inner: Arc<dyn Connector>,
    watch: Arc<W>,
}

impl<W: Watch> Watched<W> {
    /// Watches the messages to `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Connector>, watch: Arc<W>) -> Self {
        Self { inner, watch }
    }
}

#[async_trait]
impl<W: Watch> Connector for Watched<W> {
    fn destination(&self) -> &str {
        self.inner.destination()
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
        let in_flight = InFlight::default();
        let (watch, awaited) = (Arc::clone(&self.watch), Arc::clone(&in_flight));
        let seen = receipts.clone().through(move |receipt| {
            let message = awaited.lock().unwrap_or_else(PoisonError::into_inner).remove(&receipt.ticket);
            if let Some(message) = message {
                watch.answered(&message, &receipt.outcome);
            }
            Some(receipt)
        });
        let inner = self.inner.connect(seen).await?;
        self.watch.connected();
        Ok(Box::new(WatchedPublisher { inner, watch: Arc::clone(&self.watch), in_flight, receipts }))
    }

    fn connect_max(&self) -> Duration {
        self.inner.connect_max()
    }

    fn answer_max(&self) -> Option<Duration> {
        self.inner.answer_max()
    }

    fn last_error(&self) -> Option<String> {
        self.inner.last_error()
    }

    fn take_unrouted(&self) -> Vec<Unrouted> {
        self.inner.take_unrouted()
    }
}

/// The messages of a session that have no answer.
type InFlight = Arc<Mutex<HashMap<Ticket, Arc<Message>>>>;

struct WatchedPublisher<W> {
    inner: Box<dyn Publisher>,
    watch: Arc<W>,
    in_flight: InFlight,
    receipts: Receipts,
}

#[async_trait]
impl<W: Watch> Publisher for WatchedPublisher<W> {
    fn profile(&self) -> Capabilities {
        self.inner.profile()
    }

    async fn submit(&mut self, mut batch: Vec<Submission>) {
        batch.retain(|Submission { ticket, message }| match self.watch.submitted(message) {
            Ok(()) => true,
            Err(error) => {
                self.receipts.send(*ticket, Err(error));
                false
            }
        });
        let passed = batch.iter().map(|Submission { ticket, message }| (*ticket, Arc::clone(message)));
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).extend(passed);
        self.inner.submit(batch).await;
    }

    async fn close(self: Box<Self>, grace: Duration) {
        self.inner.close(grace).await;
    }
}
