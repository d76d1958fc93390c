//! Queues of deliveries by ordering key, which decide what may be worked on. Pure.

use std::collections::{HashMap, VecDeque};

use message::{Delivery, Message, OrderingKey};

use crate::ids::Tenant;

/// Deliveries that must keep their order: those of one tenant and key, whatever their topics. A
/// queue can bring several topics in one order, and tenants may use the same keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Lane {
    tenant: Tenant,
    key: OrderingKey,
}

impl Lane {
    /// Returns the lane of a message with a key. An unknown tenant counts as no tenant.
    pub(super) fn of(message: &Message, tenant: Option<Tenant>) -> Option<Self> {
        Some(Self { tenant: tenant.unwrap_or_else(Tenant::none), key: message.key.clone()? })
    }
}

/// A delivery in hand, with its session: its token is valid only in that session.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) delivery: Delivery,
    pub(super) session: u64,
    pub(super) lane: Option<Lane>,
    /// Whether another process may have ended with it in hand.
    pub(super) is_suspect: bool,
}

/// Deliveries in queues by lane. Of each lane one delivery is ready or being worked on, and the
/// others wait behind it. Deliveries without a key do not wait.
#[derive(Debug, Default)]
pub(super) struct KeyQueues {
    /// The lanes that have a delivery that is ready or being worked on, each with the deliveries
    /// that wait behind it.
    waiting: HashMap<Lane, VecDeque<Held>>,
    ready: VecDeque<Held>,
}

impl KeyQueues {
    /// Returns whether a lane has a delivery that is ready or being worked on.
    pub(super) fn is_busy(&self, lane: Option<&Lane>) -> bool {
        lane.is_some_and(|lane| self.waiting.contains_key(lane))
    }

    /// Adds a delivery.
    pub(super) fn push(&mut self, held: Held) {
        if let Some(queue) = held.lane.as_ref().and_then(|lane| self.waiting.get_mut(lane)) {
            queue.push_back(held);
            return;
        }
        if let Some(lane) = &held.lane {
            self.waiting.insert(lane.clone(), VecDeque::new());
        }
        self.ready.push_back(held);
    }

    /// Returns the next delivery to work on.
    pub(super) fn next(&mut self) -> Option<Held> {
        self.ready.pop_front()
    }

    /// Releases the lane of a delivery whose work has ended, whatever the outcome.
    pub(super) fn finished(&mut self, held: &Held) {
        let Some(lane) = &held.lane else { return };
        match self.waiting.get_mut(lane).map(VecDeque::pop_front) {
            Some(Some(next)) => self.ready.push_back(next),
            Some(None) => {
                self.waiting.remove(lane);
            }
            None => {}
        }
    }

    /// Removes everything that is not being worked on, in the order of arrival.
    pub(super) fn drain(&mut self) -> Vec<Held> {
        let mut drained: Vec<_> = self.ready.drain(..).collect();
        // Lanes whose first delivery was only ready become free; the others stay busy until their
        // work has ended.
        let mut freed: Vec<_> =
            drained.iter().filter_map(|held| self.waiting.remove(held.lane.as_ref()?)).flatten().collect();
        drained.append(&mut freed);
        drained.extend(self.waiting.values_mut().flat_map(|queue| queue.drain(..)));
        drained.sort_unstable_by_key(|held| (held.session, held.delivery.token));
        drained
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::{DeliveryToken, EventType, Message, Topic};

    fn held(token: u64, key: &str) -> Held {
        held_of(token, key, Tenant::none())
    }

    fn held_of(token: u64, key: &str, tenant: Tenant) -> Held {
        let mut message = Message::new(Topic::new("t").unwrap(), EventType::new("k").unwrap(), "x");
        message.key = (!key.is_empty()).then(|| OrderingKey::new(key).unwrap());
        let lane = Lane::of(&message, Some(tenant));
        let delivery = Delivery {
            token: DeliveryToken(token),
            message: Ok(message),
            redelivered: false,
            origin: String::new(),
        };
        Held { delivery, session: 1, lane, is_suspect: false }
    }

    fn token(held: Option<Held>) -> Option<u64> {
        held.map(|held| held.delivery.token.0)
    }

    #[test]
    fn a_key_has_one_delivery_at_a_time_and_others_pass() {
        let mut key_queues = KeyQueues::default();
        for (number, key) in [(1, "a"), (2, "a"), (3, "b"), (4, ""), (5, "")] {
            key_queues.push(held(number, key));
        }
        let first = key_queues.next().unwrap();
        assert_eq!(first.delivery.token.0, 1);
        assert_eq!(
            [token(key_queues.next()), token(key_queues.next()), token(key_queues.next())],
            [Some(3), Some(4), Some(5)]
        );
        assert_eq!(token(key_queues.next()), None);
        key_queues.finished(&first);
        let second = key_queues.next().unwrap();
        assert_eq!(second.delivery.token.0, 2);
        assert!(key_queues.is_busy(second.lane.as_ref()));
        key_queues.finished(&second);
        let other = held(0, "b");
        assert!(!key_queues.is_busy(second.lane.as_ref()) && key_queues.is_busy(other.lane.as_ref()));
    }

    #[test]
    fn equal_keys_of_two_tenants_pass_each_other_and_those_of_two_topics_do_not() {
        let mut key_queues = KeyQueues::default();
        key_queues.push(held(1, "7"));
        key_queues.push(held_of(2, "7", Tenant::new("acme").unwrap()));
        let mut elsewhere = held(3, "7");
        if let Ok(message) = &mut elsewhere.delivery.message {
            message.topic = Topic::new("other").unwrap();
            elsewhere.lane = Lane::of(message, None);
        }
        key_queues.push(elsewhere);
        let passed: Vec<_> = std::iter::from_fn(|| token(key_queues.next())).collect();
        assert_eq!(passed, [1, 2]);
    }

    #[test]
    fn draining_leaves_the_lanes_of_running_work_busy() {
        let mut key_queues = KeyQueues::default();
        for (number, key) in [(1, "a"), (2, "a"), (3, "b"), (4, "b"), (5, "")] {
            key_queues.push(held(number, key));
        }
        let running = key_queues.next().unwrap();
        let drained: Vec<_> = key_queues.drain().into_iter().map(|held| held.delivery.token.0).collect();
        assert_eq!(drained, [2, 3, 4, 5]);
        let other = held(0, "b");
        assert!(key_queues.is_busy(running.lane.as_ref()) && !key_queues.is_busy(other.lane.as_ref()));
        key_queues.push(held(6, "a"));
        assert_eq!(token(key_queues.next()), None, "the key is still being worked on");
        key_queues.finished(&running);
        assert_eq!(token(key_queues.next()), Some(6));
    }
}
