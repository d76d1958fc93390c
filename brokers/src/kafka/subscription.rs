//! One consuming session.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use async_trait::async_trait;
use message::{Delivery, DeliveryToken, Lag, Settlement, SubscriptionError};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::inflow::Inflow;
use super::pump::Command;

/// Maximum time for closing: an unreachable cluster never answers the last commit.
const GOODBYE_MAX: Duration = Duration::from_secs(10);

/// A member of a consumer group. Dropping it returns at once, and its thread leaves the group;
/// unsettled messages are delivered again to the next owner of the partitions.
#[derive(Debug)]
pub(super) struct Subscription {
    inflow: Arc<Inflow>,
    commands: Sender<Command>,
    origin: String,
    is_of_group: bool,
}

impl Subscription {
    pub(super) fn new(inflow: Arc<Inflow>, commands: Sender<Command>, origin: String) -> Self {
        Self { inflow, commands, origin, is_of_group: true }
    }

    /// Sets whether a group assigns its partitions, rather than the settings.
    pub(super) fn of_group(mut self, is_of_group: bool) -> Self {
        self.is_of_group = is_of_group;
        self
    }

    fn take(&self, max: NonZeroUsize) -> Vec<Delivery> {
        self.inflow.lock().ahead.take(max)
    }

    /// Sends the thread a command and waits for its answer.
    async fn ask(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<(), SubscriptionError>>) -> Command,
    ) -> Result<(), SubscriptionError> {
        let (answer, answered) = oneshot::channel();
        let gone =
            || SubscriptionError::lost(format!("{}: the subscription's thread has ended", self.origin));
        self.commands.send(command(answer)).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

#[async_trait]
impl message::Subscription for Subscription {
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
            self.inflow.check()?;
            let deliveries = self.take(max);
            if !deliveries.is_empty() {
                // There is room again. If the thread has ended, the next call reports it.
                let _ = self.commands.send(Command::Wake);
                return Ok(deliveries);
            }
            if timeout_at(deadline, self.inflow.arrived.notified()).await.is_err() {
                return Ok(Vec::new());
            }
        }
    }

    async fn settle(&mut self, settlements: Vec<Settlement>) -> Result<(), SubscriptionError> {
        self.inflow.check()?;
        self.ask(|answer| Command::Settle(settlements, answer)).await
    }

    /// Only checks the subscription: the thread sends heartbeats, and Kafka sets no time limit for
    /// a single message.
    async fn keep_alive(&mut self, _tokens: &[DeliveryToken]) -> Result<(), SubscriptionError> {
        self.inflow.check()
    }

    fn lag(&self) -> Vec<Lag> {
        self.inflow.lags()
    }

    fn is_assigned(&self) -> Option<bool> {
        self.is_of_group.then(|| self.inflow.is_assigned())
    }

    async fn close(self: Box<Self>) -> Result<(), SubscriptionError> {
        // The last commit waits for the cluster without a limit.
        match tokio::time::timeout(GOODBYE_MAX, self.ask(Command::Close)).await {
            Ok(closed) => closed,
            Err(_) => Err(SubscriptionError::lost(format!(
                "{}: no answer to the last commit within {GOODBYE_MAX:?}; uncommitted messages are redelivered",
                self.origin
            ))),
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // After a close the thread has ended, and nothing receives this.
        let _ = self.commands.send(Command::Abandon);
    }
}
