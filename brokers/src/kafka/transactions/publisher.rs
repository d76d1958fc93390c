//! The engine's end of a session.

use std::time::Duration;

use async_trait::async_trait;
use message::{Capabilities, MaxInFlightPerKey, PublishError, Receipts, Submission};

use super::session::Session;
use super::worker::Command;

/// The engine's handle of a session that publishes in transactions.
pub(super) struct TransactionalPublisher {
    session: Session,
    receipts: Receipts,
}

impl TransactionalPublisher {
    pub(super) fn new(session: Session, receipts: Receipts) -> Self {
        Self { session, receipts }
    }
}

#[async_trait]
impl message::Publisher for TransactionalPublisher {
    fn profile(&self) -> Capabilities {
        let max_in_flight_per_key = MaxInFlightPerKey::Pipelined;
        Capabilities { max_in_flight_per_key, batch_len: self.session.batch_len }
    }

    async fn submit(&mut self, batch: Vec<Submission>) {
        if let Err(refused) = self.session.send(Command::Batch(batch, self.receipts.clone()))
            && let Command::Batch(batch, receipts) = refused.0
        {
            for Submission { ticket, .. } in batch {
                receipts.send(ticket, Err(PublishError::session_lost("the kafka session ended")));
            }
        }
    }

    async fn ended(&mut self) {
        self.session.ended_by_itself().await;
    }

    /// Abandons an open transaction: nothing can commit it after this.
    async fn close(self: Box<Self>, _: Duration) {}
}

impl Drop for TransactionalPublisher {
    fn drop(&mut self) {
        self.session.end();
    }
}
