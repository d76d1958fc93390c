//! A publishing session: submissions get their endpoints here and are sent by the dispatcher.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use message::{Capabilities, MaxInFlightPerKey, Publisher, Receipts, Submission};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::dispatcher::{Dispatcher, Pace};
use super::endpoints::Endpoints;
use super::send::{Job, Sender};
use crate::pending::Pending;

/// A session. Dropping it cancels its requests; their messages are answered as unknown.
pub(super) struct HttpPublisher {
    receipts: Receipts,
    endpoints: Arc<Endpoints>,
    submitted: mpsc::UnboundedSender<Job>,
    dispatcher: JoinSet<()>,
    pace: Pace,
}

impl HttpPublisher {
    pub(super) fn new(receipts: Receipts, endpoints: Arc<Endpoints>, sender: Sender, pace: Pace) -> Self {
        let (submitted, queue) = mpsc::unbounded_channel();
        let mut dispatcher = JoinSet::new();
        dispatcher.spawn(Dispatcher::new(queue, Arc::new(sender), pace).run());
        Self { receipts, endpoints, submitted, dispatcher, pace }
    }
}

#[async_trait]
impl Publisher for HttpPublisher {
    fn profile(&self) -> Capabilities {
        // One per key: concurrent requests may arrive in any order.
        Capabilities { max_in_flight_per_key: MaxInFlightPerKey::One, batch_len: self.pace.requests_max }
    }

    async fn submit(&mut self, batch: Vec<Submission>) {
        for Submission { ticket, message } in batch {
            let pending = Pending::new(ticket, self.receipts.clone());
            match self.endpoints.of(&message) {
                // Fails only when the dispatcher has ended; the job is then dropped, which answers
                // it as unknown.
                Ok(endpoint) => drop(self.submitted.send(Job { message, endpoint, pending })),
                Err(error) => pending.answer(Err(error)),
            }
        }
    }

    async fn close(self: Box<Self>, grace: Duration) {
        let Self { submitted, mut dispatcher, .. } = *self;
        // The dispatcher ends when nothing can be submitted and everything is answered.
        drop(submitted);
        let drained = async { while dispatcher.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, drained).await.is_err() {
            tracing::warn!(?grace, "HTTP endpoints did not answer everything within the grace period");
            dispatcher.shutdown().await;
        }
    }
}
