//! A connector that notes when the broker has confirmed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use message::{Capabilities, Connector, PublishError, Publisher, Receipts, Submission, Ticket};

use super::clock::{Clock, Moment, number};

type Numbers = Arc<Mutex<HashMap<Ticket, u64>>>;

pub(super) struct Timed {
    inner: Arc<dyn Connector>,
    clock: Arc<Clock>,
}

impl Timed {
    pub(super) fn new(inner: Arc<dyn Connector>, clock: Arc<Clock>) -> Self {
        Self { inner, clock }
    }
}

#[async_trait]
impl Connector for Timed {
    fn destination(&self) -> &str {
        self.inner.destination()
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
        let (sender, mut receiver) = Receipts::channel();
        let inner = self.inner.connect(sender).await?;
        let numbers = Numbers::default();
        let (clock, known) = (Arc::clone(&self.clock), Arc::clone(&numbers));
        tokio::spawn(async move {
            while let Some(receipt) = receiver.recv().await {
                let at = Instant::now();
                let number = known.lock().unwrap_or_else(PoisonError::into_inner).remove(&receipt.ticket);
                if let (Some(number), Ok(())) = (number, &receipt.outcome) {
                    clock.note(number, Moment::Acknowledged, at);
                }
                receipts.send(receipt.ticket, receipt.outcome);
            }
        });
        Ok(Box::new(TimedPublisher { inner, numbers }))
    }
}

struct TimedPublisher {
    inner: Box<dyn Publisher>,
    numbers: Numbers,
}

#[async_trait]
impl Publisher for TimedPublisher {
    fn profile(&self) -> Capabilities {
        self.inner.profile()
    }

    async fn submit(&mut self, batch: Vec<Submission>) {
        {
            let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
            for submission in &batch {
                if let Some(number) = number(&submission.message) {
                    numbers.insert(submission.ticket, number);
                }
            }
        }
        self.inner.submit(batch).await;
    }

    async fn close(self: Box<Self>, grace: Duration) {
        self.inner.close(grace).await;
    }
}
