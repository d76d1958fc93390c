//! A publishing session: submissions are encoded here and sent by the dispatcher.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use message::{Capabilities, MaxInFlightPerKey, Message, PublishError, Publisher, Receipts, Submission};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::backlog::{BATCH_ENTRIES_MAX, Item, deduplication, fifo_group, group};
use super::dispatcher::{Addressed, Dispatcher, Pace};
use super::queues::is_fifo;
use super::send::Sender;
use super::wire;
use crate::pending::Pending;

/// A session with SQS. Dropping it cancels its requests; their messages are answered as unknown.
pub(super) struct SqsPublisher {
    receipts: Receipts,
    sender: Arc<Sender>,
    submitted: mpsc::UnboundedSender<Addressed>,
    dispatcher: JoinSet<()>,
    pace: Pace,
    fair_queues: bool,
}

impl SqsPublisher {
    pub(super) fn new(receipts: Receipts, sender: Sender, pace: Pace, fair_queues: bool) -> Self {
        let sender = Arc::new(sender);
        let (submitted, queue) = mpsc::unbounded_channel();
        let mut dispatcher = JoinSet::new();
        dispatcher.spawn(Dispatcher::new(queue, sender.clone(), pace).run());
        Self { receipts, sender, submitted, dispatcher, pace, fair_queues }
    }

    fn address(&self, message: &Message, pending: Pending) -> Result<Addressed, (Pending, PublishError)> {
        let queue = self.sender.queues.of(message.topic.as_str()).to_owned();
        let record = match wire::encode(message, self.pace.batch_bytes_max) {
            Ok(record) => record,
            Err(error) => return Err((pending, error)),
        };
        let fifo = is_fifo(&queue);
        let fair = || message.key.as_ref().filter(|_| self.fair_queues).map(|key| group(key.as_str()));
        let item = Item {
            topic: message.topic.clone(),
            record,
            group: if fifo { Some(fifo_group(message)) } else { fair() },
            deduplication: fifo.then(|| deduplication(message)),
            pending,
        };
        Ok((queue, item))
    }
}

#[async_trait]
impl Publisher for SqsPublisher {
    fn profile(&self) -> Capabilities {
        // One per key: concurrent requests may arrive in any order.
        Capabilities {
            max_in_flight_per_key: MaxInFlightPerKey::One,
            batch_len: self.pace.concurrency * BATCH_ENTRIES_MAX,
        }
    }

    async fn submit(&mut self, batch: Vec<Submission>) {
        for Submission { ticket, message } in batch {
            let pending = Pending::new(ticket, self.receipts.clone());
            match self.address(&message, pending) {
                // Fails only when the dispatcher has ended; the item is then dropped, which answers
                // it as unknown.
                Ok(addressed) => drop(self.submitted.send(addressed)),
                Err((pending, error)) => pending.answer(Err(error)),
            }
        }
    }

    async fn close(self: Box<Self>, grace: Duration) {
        let Self { submitted, mut dispatcher, .. } = *self;
        // The dispatcher ends when nothing can be submitted and everything is answered.
        drop(submitted);
        let drained = async { while dispatcher.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, drained).await.is_err() {
            tracing::warn!(?grace, "sqs did not answer everything within the grace period");
            dispatcher.shutdown().await;
        }
    }
}
