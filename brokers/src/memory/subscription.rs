//! One consuming session.

use std::num::NonZeroUsize;
use std::time::Duration;

use async_trait::async_trait;
use message::{Delivery, DeliveryToken, Settlement, SubscriptionError, Topic};
use tokio::sync::watch;

use super::broker::{Broker, State};
use super::group::Picked;

/// A member of a group on a [`Broker`]. Dropping it returns its unsettled messages to the group.
#[derive(Debug)]
pub struct Subscription {
    broker: Broker,
    group: String,
    member: u64,
    topics: Vec<Topic>,
    changes: watch::Receiver<u64>,
    origin: String,
}

impl Subscription {
    pub(super) fn new(
        broker: Broker,
        group: String,
        member: u64,
        topics: Vec<Topic>,
        changes: watch::Receiver<u64>,
    ) -> Self {
        let origin = format!("memory group {group}");
        Self { broker, group, member, topics, changes, origin }
    }

    fn check(&self) -> Result<(), SubscriptionError> {
        if self.broker.is_member(self.member) {
            Ok(())
        } else {
            Err(SubscriptionError::lost("memory broker: the subscription is broken"))
        }
    }

    fn take(&self, max: NonZeroUsize) -> Vec<Delivery> {
        let mut state = self.broker.lock();
        let mut deliveries = Vec::new();
        for topic in &self.topics {
            while deliveries.len() < max.get() {
                let Some(picked) = state.pick(&self.group, self.member, topic) else { break };
                let twice = state.duplicate(&self.group, &picked);
                deliveries.extend(
                    std::iter::once(picked).chain(twice).filter_map(|picked| state.delivery(&picked)),
                );
            }
        }
        // A duplicate can exceed the bound by one: give that one back.
        for extra in deliveries.split_off(max.get().min(deliveries.len())) {
            state.settle(&self.group, &Settlement::release(extra.token));
        }
        state.shuffle(&mut deliveries);
        deliveries
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
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            self.changes.mark_unchanged();
            self.check()?;
            let deliveries = self.take(max);
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
            match tokio::time::timeout_at(deadline, self.changes.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Ok(Vec::new()),
            }
        }
    }

    async fn settle(&mut self, settlements: Vec<Settlement>) -> Result<(), SubscriptionError> {
        self.check()?;
        let mut state = self.broker.lock();
        if state.lost_settlements_left > 0 {
            state.lost_settlements_left -= 1;
            drop(state);
            self.broker.leave(self.member);
            return Err(SubscriptionError::lost("memory broker: settlements dropped, as the test requested"));
        }
        settlements.iter().for_each(|settlement| state.settle(&self.group, settlement));
        drop(state);
        self.broker.changed();
        Ok(())
    }

    async fn keep_alive(&mut self, _tokens: &[DeliveryToken]) -> Result<(), SubscriptionError> {
        self.check()
    }

    async fn close(self: Box<Self>) -> Result<(), SubscriptionError> {
        self.check()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.broker.leave(self.member);
    }
}

impl State {
    fn pick(&mut self, group: &str, member: u64, topic: &Topic) -> Option<Picked> {
        let log = self.logs.get(topic)?;
        self.groups.get_mut(group)?.pick(member, topic, log)
    }

    fn duplicate(&mut self, group: &str, picked: &Picked) -> Option<Picked> {
        if self.duplicates_left == 0 {
            return None;
        }
        self.duplicates_left -= 1;
        self.groups.get_mut(group)?.duplicate(picked)
    }

    /// Shuffles if requested (Fisher-Yates, with a xorshift generator).
    fn shuffle<T>(&mut self, items: &mut [T]) {
        let Some(number) = &mut self.shuffle else { return };
        for last in (1..items.len()).rev() {
            *number ^= *number << 13;
            *number ^= *number >> 7;
            *number ^= *number << 17;
            items.swap(last, usize::try_from(*number % (last as u64 + 1)).unwrap_or_default());
        }
    }

    fn settle(&mut self, group: &str, settlement: &Settlement) {
        if let Some(group) = self.groups.get_mut(group) {
            group.settle(settlement.token(), settlement.disposition());
        }
    }

    fn delivery(&self, picked: &Picked) -> Option<Delivery> {
        let (topic, at) = &picked.place;
        Some(Delivery {
            token: picked.token,
            message: self.logs.get(topic)?.get(*at)?.clone(),
            redelivered: picked.redelivered,
            origin: format!("{topic}@{at}"),
        })
    }
}
