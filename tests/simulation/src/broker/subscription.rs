//! The seam of consumers.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use message::{Delivery, DeliveryToken, Disposition, Settlement, Subscription, SubscriptionError};
use tokio::time::Instant;

use crate::process::ProcessId;
use crate::world::{World, pass};

/// Subscribes a process.
pub(crate) async fn subscribe(
    world: Arc<World>,
    process: ProcessId,
) -> Result<Box<dyn Subscription>, SubscriptionError> {
    let latency = world.lock().latency();
    pass(latency).await;
    let mut state = world.lock();
    if state.broker.is_down() {
        return Err(SubscriptionError::lost("simulated: the broker is away"));
    }
    let member = state.broker.group.join();
    state.note(format_args!("{process} subscribes, member {member}"));
    drop(state);
    Ok(Box::new(SimulatedSubscription { world, process, member }))
}

struct SimulatedSubscription {
    world: Arc<World>,
    process: ProcessId,
    member: u64,
}

impl SimulatedSubscription {
    fn check(&self) -> Result<(), SubscriptionError> {
        if self.world.lock().broker.group.members.contains(&self.member) {
            Ok(())
        } else {
            Err(SubscriptionError::lost("simulated: the subscription broke"))
        }
    }

    fn take(&self, max: NonZeroUsize) -> Vec<Delivery> {
        let mut state = self.world.lock();
        let mut deliveries = Vec::new();
        while deliveries.len() < max.get() {
            let broker = &mut state.broker;
            let Some(picked) = broker.group.pick(self.member, &broker.log) else { break };
            let message = broker.log[picked.place].clone();
            let name = state.name(message.id);
            let again = if picked.is_redelivered { " again" } else { "" };
            state.note(format_args!("{} receives m{name}{again}", self.process));
            deliveries.push(Delivery {
                token: picked.token,
                message: Ok(message),
                redelivered: picked.is_redelivered,
                origin: String::from("log"),
            });
        }
        deliveries
    }
}

#[async_trait]
impl Subscription for SimulatedSubscription {
    fn origin(&self) -> &str {
        "simulation"
    }

    async fn receive(
        &mut self,
        max: NonZeroUsize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, SubscriptionError> {
        let deadline = Instant::now() + wait;
        loop {
            let changed = self.world.log_changed.notified();
            self.check()?;
            let deliveries = self.take(max);
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                return Ok(Vec::new());
            }
        }
    }

    async fn settle(&mut self, settlements: Vec<Settlement>) -> Result<(), SubscriptionError> {
        let (latency, failure) = {
            let mut state = self.world.lock();
            (state.latency(), state.armed.settlements.pop())
        };
        pass(latency).await;
        self.check()?;
        if failure != Some(false) {
            let mut state = self.world.lock();
            for settlement in &settlements {
                let is_done = *settlement.disposition() == Disposition::Done;
                state.broker.group.settle(settlement.token(), is_done);
            }
            state.note(format_args!("{} settles {}", self.process, settlements.len()));
        }
        self.world.log_changed.notify_waiters();
        match failure {
            None => Ok(()),
            Some(_) => Err(SubscriptionError::lost("simulated: the settlement got no answer")),
        }
    }

    async fn keep_alive(&mut self, _tokens: &[DeliveryToken]) -> Result<(), SubscriptionError> {
        self.check()
    }

    async fn close(self: Box<Self>) -> Result<(), SubscriptionError> {
        self.check()
    }
}

impl Drop for SimulatedSubscription {
    fn drop(&mut self) {
        self.world.lock().broker.group.leave(self.member);
        self.world.log_changed.notify_waiters();
    }
}
