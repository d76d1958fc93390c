//! A broker that refuses a topic until its gate opens, and reports confirmations of one key.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use message::{
    Capabilities, Connector, Fault, FaultScope, PublishError, Publisher, Receipts, Submission, Ticket,
};
use tokio::sync::mpsc;

/// The times of confirmations of messages with the watched key.
pub(super) type Watched = mpsc::UnboundedReceiver<Instant>;
type Tickets = Arc<Mutex<HashSet<Ticket>>>;

pub(super) struct Gate {
    inner: Arc<dyn Connector>,
    is_open: Arc<AtomicBool>,
    key: &'static str,
    confirmed: mpsc::UnboundedSender<Instant>,
}

impl Gate {
    /// Passes messages on to `inner` while `is_open` is set, and reports when those with `key` are
    /// confirmed.
    pub(super) fn new(
        inner: Arc<dyn Connector>,
        is_open: Arc<AtomicBool>,
        key: &'static str,
    ) -> (Self, Watched) {
        let (confirmed, watched) = mpsc::unbounded_channel();
        (Self { inner, is_open, key, confirmed }, watched)
    }
}

#[async_trait]
impl Connector for Gate {
    fn destination(&self) -> &str {
        self.inner.destination()
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
        let (sender, mut receiver) = Receipts::channel();
        let inner = self.inner.connect(sender).await?;
        let (tickets, confirmed, out) = (Tickets::default(), self.confirmed.clone(), receipts.clone());
        let watched = Arc::clone(&tickets);
        tokio::spawn(async move {
            while let Some(receipt) = receiver.recv().await {
                let is_watched =
                    watched.lock().unwrap_or_else(PoisonError::into_inner).remove(&receipt.ticket);
                if is_watched && receipt.outcome.is_ok() {
                    // The receiver may be gone.
                    let _ = confirmed.send(Instant::now());
                }
                out.send(receipt.ticket, receipt.outcome);
            }
        });
        Ok(Box::new(GatedPublisher {
            inner,
            is_open: Arc::clone(&self.is_open),
            key: self.key,
            tickets,
            receipts,
        }))
    }
}

struct GatedPublisher {
    inner: Box<dyn Publisher>,
    is_open: Arc<AtomicBool>,
    key: &'static str,
    tickets: Tickets,
    receipts: Receipts,
}

#[async_trait]
impl Publisher for GatedPublisher {
    fn profile(&self) -> Capabilities {
        self.inner.profile()
    }

    async fn submit(&mut self, batch: Vec<Submission>) {
        if !self.is_open.load(Relaxed) {
            for submission in batch {
                let refused = PublishError::new(Fault::Broker, FaultScope::Topic, "the gate is closed");
                self.receipts.send(submission.ticket, Err(refused));
            }
            return;
        }
        {
            let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
            let is_watched = |submission: &&Submission| {
                submission.message.key.as_ref().is_some_and(|key| key.as_str() == self.key)
            };
            tickets.extend(batch.iter().filter(is_watched).map(|submission| submission.ticket));
        }
        self.inner.submit(batch).await;
    }

    async fn close(self: Box<Self>, grace: Duration) {
        self.inner.close(grace).await;
    }
}
