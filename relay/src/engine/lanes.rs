//! Which queued entries may be submitted now. Pure.
//!
//! With a pipelined publisher that is simply the reading order. With one message per key in flight, each key is
//! a lane: its next entry becomes ready when the one before is settled. Keys do not wait for each other.

use std::collections::{HashMap, VecDeque};

use message::{KeyWindow, OrderingKey, Ticket};

/// The queue of entries to submit.
#[derive(Debug)]
pub struct Lanes {
    window: KeyWindow,
    ready: VecDeque<Ticket>,
    /// Keys with an entry that is ready or in flight, and those waiting behind it.
    lanes: HashMap<OrderingKey, VecDeque<Ticket>>,
}

impl Lanes {
    /// Empty lanes.
    #[must_use]
    pub fn new(window: KeyWindow) -> Self {
        Self { window, ready: VecDeque::new(), lanes: HashMap::new() }
    }

    /// Queues an entry behind all others of its key.
    pub fn push(&mut self, ticket: Ticket, key: Option<&OrderingKey>) {
        match (self.window, key) {
            (KeyWindow::One, Some(key)) => match self.lanes.get_mut(key) {
                Some(waiting) => waiting.push_back(ticket),
                None => {
                    self.lanes.insert(key.clone(), VecDeque::new());
                    self.ready.push_back(ticket);
                }
            },
            _ => self.ready.push_back(ticket),
        }
    }

    /// Marks a key as having an entry in flight already (when the lanes are rebuilt in the middle of a session).
    pub fn occupy(&mut self, key: Option<&OrderingKey>) {
        if let (KeyWindow::One, Some(key)) = (self.window, key) {
            self.lanes.entry(key.clone()).or_default();
        }
    }

    /// The entry at the head of its key is settled: the next one of the key becomes ready.
    pub fn settled(&mut self, key: Option<&OrderingKey>) {
        if self.window == KeyWindow::Pipelined {
            return;
        }
        let Some(key) = key else { return };
        match self.lanes.get_mut(key).map(VecDeque::pop_front) {
            Some(Some(next)) => self.ready.push_back(next),
            Some(None) => {
                self.lanes.remove(key);
            }
            None => {}
        }
    }

    /// The next entry to submit.
    pub fn pop(&mut self) -> Option<Ticket> {
        self.ready.pop_front()
    }

    /// The first entry that `may` leave, past others that may not.
    pub fn pop_where(&mut self, mut may: impl FnMut(Ticket) -> bool) -> Option<Ticket> {
        let place = self.ready.iter().position(|ticket| may(*ticket))?;
        self.ready.remove(place)
    }

    /// How many messages of one key may be in flight.
    #[must_use]
    pub fn window(&self) -> KeyWindow {
        self.window
    }

    /// How many could be submitted now.
    #[must_use]
    pub fn ready_len(&self) -> usize {
        self.ready.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> OrderingKey {
        OrderingKey::new(text).unwrap()
    }

    fn drain(lanes: &mut Lanes) -> Vec<u64> {
        std::iter::from_fn(|| lanes.pop()).map(|ticket| ticket.0).collect()
    }

    #[test]
    fn one_per_key_and_many_keys_at_once() {
        let (a, b) = (key("a"), key("b"));
        let mut lanes = Lanes::new(KeyWindow::One);
        for (ticket, key) in [(1, Some(&a)), (2, Some(&a)), (3, Some(&b)), (4, None), (5, None)] {
            lanes.push(Ticket(ticket), key);
        }
        assert_eq!(drain(&mut lanes), [1, 3, 4, 5]);
        lanes.settled(Some(&a));
        assert_eq!(drain(&mut lanes), [2]);
        lanes.settled(Some(&a));
        lanes.push(Ticket(6), Some(&a));
        assert_eq!(drain(&mut lanes), [6], "an empty lane is forgotten");
    }

    #[test]
    fn entries_that_may_not_leave_keep_their_places() {
        let mut lanes = Lanes::new(KeyWindow::Pipelined);
        (1..=4).for_each(|ticket| lanes.push(Ticket(ticket), None));
        assert_eq!(lanes.pop_where(|ticket| ticket.0 == 3), Some(Ticket(3)));
        assert_eq!(lanes.pop_where(|_| false), None);
        assert_eq!(drain(&mut lanes), [1, 2, 4]);
    }

    #[test]
    fn a_pipelined_publisher_takes_everything_in_order() {
        let a = key("a");
        let mut lanes = Lanes::new(KeyWindow::Pipelined);
        (1..=4).for_each(|ticket| lanes.push(Ticket(ticket), Some(&a)));
        assert_eq!(drain(&mut lanes), [1, 2, 3, 4]);
    }
}
