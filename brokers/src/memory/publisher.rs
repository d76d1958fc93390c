//! One publishing session.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use message::{Capabilities, MaxInFlightPerKey, Receipts, Submission};

use super::broker::Broker;
use crate::pending::Pending;

/// Batch length recommended to callers; the broker itself has no preference.
const BATCH_LEN: usize = 256;

/// A session with a [`Broker`]. Dropping it makes the outcome of unconfirmed messages unknown.
#[derive(Debug)]
pub(super) struct Publisher {
    broker: Broker,
    session: u64,
    max_in_flight_per_key: MaxInFlightPerKey,
    receipts: Receipts,
}

impl Publisher {
    pub(super) fn new(
        broker: Broker,
        session: u64,
        max_in_flight_per_key: MaxInFlightPerKey,
        receipts: Receipts,
    ) -> Self {
        Self { broker, session, max_in_flight_per_key, receipts }
    }
}

#[async_trait]
impl message::Publisher for Publisher {
    fn profile(&self) -> Capabilities {
        Capabilities { max_in_flight_per_key: self.max_in_flight_per_key, batch_len: BATCH_LEN }
    }

    async fn submit(&mut self, batch: Vec<Submission>) {
        for Submission { ticket, message } in batch {
            let message = Arc::unwrap_or_clone(message);
            self.broker.accept(self.session, message, Pending::new(ticket, self.receipts.clone()));
        }
    }

    async fn close(self: Box<Self>, grace: Duration) {
        let mut changes = self.broker.watch();
        let confirmed = async {
            while self.broker.unconfirmed(self.session) > 0 {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        // After the grace period, dropping the session makes the remaining outcomes unknown.
        let _ = tokio::time::timeout(grace, confirmed).await;
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.broker.end(self.session);
    }
}
