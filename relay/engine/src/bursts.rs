//! Keys that have more messages than leave soon, and how much of each is held beside the log only
//! for this. Pure.
//!
//! Entries of such a key are held so that others need not wait behind them. Each one is then stored
//! a second time, with its content. So the log is read on only while they are fewer than a limit.
//! Entries that are held because something stops their key do not count, as it is not known when
//! they leave: the log is read on beside them.

use std::collections::BTreeMap;

use crate::amount::Amount;
use crate::held::QueueHash;

/// The amount that is held of each burst. Invariant: `total` is the sum over the queues.
#[derive(Debug, Default)]
pub(crate) struct Bursts {
    queues: BTreeMap<QueueHash, Amount>,
    total: Amount,
}

impl Bursts {
    /// Records that a key has more in the window than leaves soon.
    pub(crate) fn begin(&mut self, queue: QueueHash) {
        self.queues.entry(queue).or_default();
    }

    /// Records that an entry of the log is held behind others of its key, which nothing stops.
    pub(crate) fn add(&mut self, queue: QueueHash, bytes: usize) {
        let Some(held) = self.queues.get_mut(&queue) else { return };
        let entry = Amount::of(bytes);
        *held = held.plus(entry);
        self.total = self.total.plus(entry);
    }

    /// Records that an entry was read back: no more than what was added.
    pub(crate) fn take(&mut self, queue: QueueHash, bytes: usize) {
        let Some(held) = self.queues.get_mut(&queue) else { return };
        let entry = Amount { entries: held.entries.min(1), bytes: held.bytes.min(bytes) };
        *held = held.minus(entry);
        self.total = self.total.minus(entry);
    }

    /// Forgets the bursts of which nothing is held any more.
    pub(crate) fn retain(&mut self, is_held: impl Fn(QueueHash) -> bool) {
        for (_, held) in self.queues.extract_if(.., |queue, _| !is_held(*queue)) {
            self.total = self.total.minus(held);
        }
    }

    /// Returns whether the bursts that get further have reached a limit together.
    #[must_use]
    pub(crate) fn reach(&self, limit: Amount, is_moving: impl Fn(QueueHash) -> bool) -> bool {
        self.total.reaches(limit)
            && self
                .queues
                .iter()
                .filter(|(queue, _)| is_moving(**queue))
                .fold(Amount::default(), |sum, (_, held)| sum.plus(*held))
                .reaches(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(key: &str) -> QueueHash {
        QueueHash::of("", Some(key))
    }

    #[test]
    fn only_bursts_that_get_further_count() {
        let (a, b) = (queue("a"), queue("b"));
        let mut bursts = Bursts::default();
        bursts.add(a, 10);
        bursts.begin(a);
        bursts.begin(b);
        [a, a, b].into_iter().for_each(|queue| bursts.add(queue, 10));
        let reach = |bursts: &Bursts, entries, bytes| bursts.reach(Amount { entries, bytes }, |_| true);
        assert!(reach(&bursts, 3, 99) && !reach(&bursts, 4, 99), "what came before the burst is not of it");
        assert!(reach(&bursts, 99, 30) && !reach(&bursts, 99, 31));
        let limit = Amount { entries: 3, bytes: 99 };
        assert!(!bursts.reach(limit, |queue| queue == a), "something stops the other one");
        // More than was added is read back: it was held before.
        (0..3).for_each(|_| bursts.take(a, 10));
        assert!(reach(&bursts, 1, 99) && !reach(&bursts, 2, 99));
        bursts.retain(|queue| queue == a);
        assert!(!reach(&bursts, 1, 1));
        bursts.add(b, 10);
        assert!(!reach(&bursts, 1, 1), "it has ended");
    }
}
