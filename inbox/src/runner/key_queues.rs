//! Which deliveries may be worked on. Pure.

use std::collections::{HashMap, VecDeque};

use message::{Delivery, OrderingKey};

/// A delivery in hand, and the session that it came from: its token means nothing to another one.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) delivery: Delivery,
    pub(super) session: u64,
    /// Whether another process may have had it in hand, and ended with it.
    pub(super) is_suspect: bool,
}

impl Held {
    pub(super) fn key(&self) -> Option<&OrderingKey> {
        self.delivery.message.as_ref().ok().and_then(|message| message.key.as_ref())
    }
}

/// Deliveries in queues by ordering key: of each key one is ready or being worked on, and the
/// others wait behind it. Deliveries without a key wait for nobody.
#[derive(Debug, Default)]
pub(super) struct KeyQueues {
    /// A key is here while one of its deliveries is ready or being worked on; its queue is what
    /// waits behind.
    waiting: HashMap<OrderingKey, VecDeque<Held>>,
    ready: VecDeque<Held>,
}

impl KeyQueues {
    /// Whether a key has a delivery in its lane.
    pub(super) fn is_busy(&self, key: Option<&OrderingKey>) -> bool {
        key.is_some_and(|key| self.waiting.contains_key(key))
    }

    /// Takes a delivery in.
    pub(super) fn push(&mut self, held: Held) {
        if let Some(queue) = held.key().and_then(|key| self.waiting.get_mut(key)) {
            queue.push_back(held);
            return;
        }
        if let Some(key) = held.key() {
            self.waiting.insert(key.clone(), VecDeque::new());
        }
        self.ready.push_back(held);
    }

    /// The next delivery to work on.
    pub(super) fn next(&mut self) -> Option<Held> {
        self.ready.pop_front()
    }

    /// The work on a delivery has ended, whatever came of it.
    pub(super) fn finished(&mut self, held: &Held) {
        let Some(key) = held.key() else { return };
        match self.waiting.get_mut(key).map(VecDeque::pop_front) {
            Some(Some(next)) => self.ready.push_back(next),
            Some(None) => {
                self.waiting.remove(key);
            }
            None => {}
        }
    }

    /// Takes out everything that is not being worked on, in the order in which it came.
    pub(super) fn drain(&mut self) -> Vec<Held> {
        let mut drained: Vec<_> = self.ready.drain(..).collect();
        // KeyQueues whose first delivery was only ready are free; the others stay busy until their
        // work has ended.
        let mut freed: Vec<_> =
            drained.iter().filter_map(|held| self.waiting.remove(held.key()?)).flatten().collect();
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
        let mut message = Message::new(Topic::new("t").unwrap(), EventType::new("k").unwrap(), "x");
        message.key = (!key.is_empty()).then(|| OrderingKey::new(key).unwrap());
        let delivery = Delivery {
            token: DeliveryToken(token),
            message: Ok(message),
            redelivered: false,
            origin: String::new(),
        };
        Held { delivery, session: 1, is_suspect: false }
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
        assert!(key_queues.is_busy(second.key()));
        key_queues.finished(&second);
        assert!(!key_queues.is_busy(second.key()) && key_queues.is_busy(held(0, "b").key()));
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
        assert!(key_queues.is_busy(running.key()) && !key_queues.is_busy(held(0, "b").key()));
        key_queues.push(held(6, "a"));
        assert_eq!(token(key_queues.next()), None, "the key is still being worked on");
        key_queues.finished(&running);
        assert_eq!(token(key_queues.next()), Some(6));
    }
}
