//! Chooses the queued entries that may be submitted now. Pure.
//!
//! A pipelined publisher simply gets them in reading order. With one message per key in flight,
//! each key has a queue: its next entry becomes ready when the previous one is settled. Keys do not
//! wait for each other, as long as no queue fills the window (`machine/shares.rs`).

use std::collections::{HashMap, VecDeque};

use message::{MaxInFlightPerKey, OrderingKey, Ticket};

/// The queue of entries to submit.
#[derive(Debug)]
pub(crate) struct KeyQueues {
    window: MaxInFlightPerKey,
    ready: VecDeque<Ticket>,
    /// Keys with an entry that is ready or in flight, and the entries that wait behind it.
    key_queues: HashMap<OrderingKey, VecDeque<Ticket>>,
}

impl KeyQueues {
    /// Creates empty queues.
    #[must_use]
    pub(crate) fn new(window: MaxInFlightPerKey) -> Self {
        Self { window, ready: VecDeque::new(), key_queues: HashMap::new() }
    }

    /// Queues an entry behind all others of its key.
    pub(crate) fn push(&mut self, ticket: Ticket, key: Option<&OrderingKey>) {
        match (self.window, key) {
            (MaxInFlightPerKey::One, Some(key)) => match self.key_queues.get_mut(key) {
                Some(waiting) => waiting.push_back(ticket),
                None => {
                    self.key_queues.insert(key.clone(), VecDeque::new());
                    self.ready.push_back(ticket);
                }
            },
            _ => self.ready.push_back(ticket),
        }
    }

    /// Marks a key as having an entry in flight already (when the queues are rebuilt in the
    /// middle of a session).
    pub(crate) fn occupy(&mut self, key: Option<&OrderingKey>) {
        if let (MaxInFlightPerKey::One, Some(key)) = (self.window, key) {
            self.key_queues.entry(key.clone()).or_default();
        }
    }

    /// Records that the entry at the head of its key is settled: the next one of the key becomes
    /// ready.
    pub(crate) fn settled(&mut self, key: Option<&OrderingKey>) {
        if self.window == MaxInFlightPerKey::Pipelined {
            return;
        }
        let Some(key) = key else { return };
        match self.key_queues.get_mut(key).map(VecDeque::pop_front) {
            Some(Some(next)) => self.ready.push_back(next),
            Some(None) => {
                self.key_queues.remove(key);
            }
            None => {}
        }
    }

    /// Returns how many entries of a key wait behind the one that is ready or in flight.
    #[must_use]
    pub(crate) fn waiting_len(&self, key: &OrderingKey) -> usize {
        self.key_queues.get(key).map_or(0, VecDeque::len)
    }

    /// Returns the entries of each key that wait behind the one that is ready or in flight, if they
    /// are more than this.
    pub(crate) fn longer_than(&self, len: usize) -> impl Iterator<Item = &VecDeque<Ticket>> {
        self.key_queues.values().filter(move |waiting| waiting.len() > len)
    }

    /// Takes the next entry to submit.
    pub(crate) fn pop(&mut self) -> Option<Ticket> {
        self.ready.pop_front()
    }

    /// Returns the next entry to submit.
    #[must_use]
    pub(crate) fn front(&self) -> Option<Ticket> {
        self.ready.front().copied()
    }

    /// Takes the first ready entry for which `may` returns true, and leaves the others in the
    /// queue.
    pub(crate) fn pop_where(&mut self, mut may: impl FnMut(Ticket) -> bool) -> Option<Ticket> {
        let place = self.ready.iter().position(|ticket| may(*ticket))?;
        self.ready.remove(place)
    }

    /// Returns how many messages of one key may be in flight.
    #[must_use]
    pub(crate) fn window(&self) -> MaxInFlightPerKey {
        self.window
    }

    /// Returns how many entries could be submitted now.
    #[must_use]
    pub(crate) fn ready_len(&self) -> usize {
        self.ready.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> OrderingKey {
        OrderingKey::new(text).unwrap()
    }

    fn drain(key_queues: &mut KeyQueues) -> Vec<u64> {
        std::iter::from_fn(|| key_queues.pop()).map(|ticket| ticket.0).collect()
    }

    #[test]
    fn one_per_key_and_many_keys_at_once() {
        let (a, b) = (key("a"), key("b"));
        let mut key_queues = KeyQueues::new(MaxInFlightPerKey::One);
        for (ticket, key) in [(1, Some(&a)), (2, Some(&a)), (3, Some(&b)), (4, None), (5, None)] {
            key_queues.push(Ticket(ticket), key);
        }
        assert_eq!(drain(&mut key_queues), [1, 3, 4, 5]);
        assert_eq!((key_queues.waiting_len(&a), key_queues.waiting_len(&b)), (1, 0));
        assert_eq!(key_queues.longer_than(0).collect::<Vec<_>>(), [&[Ticket(2)]]);
        assert_eq!(key_queues.longer_than(1).count(), 0);
        key_queues.settled(Some(&a));
        assert_eq!(drain(&mut key_queues), [2]);
        key_queues.settled(Some(&a));
        key_queues.push(Ticket(6), Some(&a));
        assert_eq!(drain(&mut key_queues), [6], "an empty lane is forgotten");
    }

    #[test]
    fn entries_that_may_not_leave_keep_their_places() {
        let mut key_queues = KeyQueues::new(MaxInFlightPerKey::Pipelined);
        (1..=4).for_each(|ticket| key_queues.push(Ticket(ticket), None));
        assert_eq!(key_queues.pop_where(|ticket| ticket.0 == 3), Some(Ticket(3)));
        assert_eq!(key_queues.pop_where(|_| false), None);
        assert_eq!(drain(&mut key_queues), [1, 2, 4]);
    }

    #[test]
    fn a_pipelined_publisher_takes_everything_in_order() {
        let a = key("a");
        let mut key_queues = KeyQueues::new(MaxInFlightPerKey::Pipelined);
        (1..=4).for_each(|ticket| key_queues.push(Ticket(ticket), Some(&a)));
        assert_eq!(drain(&mut key_queues), [1, 2, 3, 4]);
    }
}
