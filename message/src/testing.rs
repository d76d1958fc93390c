//! A broker with scripted answers, for tests of code that publishes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::publisher::{
    CONNECT_MAX_DEFAULT, Capabilities, Connector, MaxInFlightPerKey, PublishError, Publisher, Receipts,
    Submission,
};
use crate::transactions::{ClosedTransaction, TransactionMark, TransactionScope, Transactions};

/// A broker whose sessions all answer by one script.
#[derive(Debug)]
pub struct ScriptedBroker<S>(pub Arc<S>);

/// The answers of a [`ScriptedBroker`]. Those that a test leaves out are the answers of a broker
/// that confirms everything and has no mark.
#[async_trait]
pub trait BrokerScript: Send + Sync + 'static {
    /// Answers [`Publisher::profile`].
    fn profile(&self) -> Capabilities {
        Capabilities { max_in_flight_per_key: MaxInFlightPerKey::Pipelined, batch_len: 100 }
    }

    /// Answers [`Connector::connect_max`].
    fn connect_max(&self) -> Duration {
        CONNECT_MAX_DEFAULT
    }

    /// Answers [`Connector::answer_max`].
    fn answer_max(&self) -> Option<Duration> {
        None
    }

    /// Answers [`Connector::connect`].
    ///
    /// # Errors
    /// The script's own.
    fn connect(&self) -> Result<(), PublishError> {
        Ok(())
    }

    /// Answers [`Publisher::submit`], now or later.
    fn submit(&self, batch: Vec<Submission>, receipts: &Receipts) {
        batch.into_iter().for_each(|submission| receipts.send(submission.ticket, Ok(())));
    }

    /// Notices [`Publisher::close`].
    fn closed(&self) {}

    /// Answers [`Transactions::take_over`].
    ///
    /// # Errors
    /// The script's own.
    fn take_over(&self, scope: &TransactionScope) -> Result<Option<TransactionMark>, PublishError> {
        let _ = scope;
        Ok(None)
    }

    /// Answers [`Transactions::session`].
    fn session(&self) -> u64 {
        1
    }

    /// Answers [`Transactions::commit`].
    async fn commit(&self, closed: ClosedTransaction, mark: TransactionMark) -> Result<(), PublishError> {
        let _ = (closed, mark);
        Ok(())
    }
}

#[async_trait]
impl<S: BrokerScript> Connector for ScriptedBroker<S> {
    fn destination(&self) -> &str {
        "script"
    }

    fn connect_max(&self) -> Duration {
        self.0.connect_max()
    }

    fn answer_max(&self) -> Option<Duration> {
        self.0.answer_max()
    }

    async fn connect(&self, receipts: Receipts) -> Result<Box<dyn Publisher>, PublishError> {
        self.0.connect()?;
        Ok(Box::new(Session { script: Arc::clone(&self.0), receipts }))
    }
}

#[async_trait]
impl<S: BrokerScript> Transactions for ScriptedBroker<S> {
    async fn take_over(&self, scope: &TransactionScope) -> Result<Option<TransactionMark>, PublishError> {
        self.0.take_over(scope)
    }

    fn session(&self) -> u64 {
        self.0.session()
    }

    fn close(&self, session: u64) -> ClosedTransaction {
        ClosedTransaction { session, producer: 0 }
    }

    async fn commit(&self, closed: ClosedTransaction, mark: TransactionMark) -> Result<(), PublishError> {
        self.0.commit(closed, mark).await
    }

    fn is_superseded(&self) -> bool {
        false
    }
}

struct Session<S> {
    script: Arc<S>,
    receipts: Receipts,
}

#[async_trait]
impl<S: BrokerScript> Publisher for Session<S> {
    fn profile(&self) -> Capabilities {
        self.script.profile()
    }

    async fn submit(&mut self, batch: Vec<Submission>) {
        self.script.submit(batch, &self.receipts);
    }

    async fn close(self: Box<Self>, _: Duration) {
        self.script.closed();
    }
}
