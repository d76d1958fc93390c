//! Tracks which delivery tags of a channel are settled, and computes the fewest acknowledgements
//! for them.
//!
//! A channel numbers its deliveries 1, 2, 3, … across all its consumers. A multiple acknowledgement
//! covers every tag up to its own, even deliveries that still wait in the client's buffer. So it is
//! used only up to the last tag before the first unsettled one.

use std::collections::{BTreeMap, BTreeSet};

/// The tags of one channel.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Every tag up to this one is settled.
    floor: u64,
    /// Runs of settled tags above the floor: the first and last tag of each. There are no more runs
    /// than unsettled tags.
    above: BTreeMap<u64, u64>,
    /// Tags handed to the caller and not settled.
    outstanding: BTreeSet<u64>,
}

/// Acknowledgements to send to the broker.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Acks {
    /// One acknowledgement for everything up to this tag.
    pub(super) up_to: Option<u64>,
    /// Acknowledgements for single tags.
    pub(super) single: Vec<u64>,
}

impl Ledger {
    /// Records that a delivery goes to the caller.
    pub(super) fn hand_out(&mut self, tag: u64) {
        self.outstanding.insert(tag);
    }

    /// Returns whether the caller still owes a settlement for this tag.
    pub(super) fn is_outstanding(&self, tag: u64) -> bool {
        self.outstanding.contains(&tag)
    }

    /// Records that a delivery goes back to its queue. The broker must be informed before later
    /// [`done`](Ledger::done) ones.
    pub(super) fn release(&mut self, tag: u64) {
        self.settle(tag);
    }

    /// Settles deliveries that are done. The caller must leave out tags that are not outstanding.
    pub(super) fn done(&mut self, tags: &[u64]) -> Acks {
        for tag in tags {
            self.settle(*tag);
        }
        let (below, single): (Vec<u64>, Vec<u64>) = tags.iter().partition(|tag| **tag <= self.floor);
        match below.as_slice() {
            [] => Acks { up_to: None, single },
            [only] => Acks { up_to: None, single: single.into_iter().chain([*only]).collect() },
            // The highest done tag, not the floor: no done tag lies between them, and a tag must
            // not be acknowledged twice.
            many => Acks { up_to: many.iter().copied().max(), single },
        }
    }

    fn settle(&mut self, tag: u64) {
        self.outstanding.remove(&tag);
        let last = self.above.remove(&(tag + 1)).unwrap_or(tag);
        let previous = self.above.range(..tag).next_back().filter(|(_, last)| **last + 1 == tag);
        let first = previous.map_or(tag, |(first, _)| *first);
        self.above.insert(first, last);
        if let Some(last) = self.above.remove(&(self.floor + 1)) {
            self.floor = last;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(tags: std::ops::RangeInclusive<u64>) -> Ledger {
        let mut ledger = Ledger::default();
        tags.for_each(|tag| ledger.hand_out(tag));
        ledger
    }

    #[test]
    fn a_contiguous_prefix_needs_one_acknowledgement() {
        let mut ledger = ledger(1..=5);
        assert_eq!(ledger.done(&[1, 2, 3]), Acks { up_to: Some(3), single: vec![] });
        assert_eq!(ledger.done(&[5]), Acks { up_to: None, single: vec![5] });
        assert_eq!(ledger.done(&[4]), Acks { up_to: None, single: vec![4] });
        assert!(!ledger.is_outstanding(3));
    }

    #[test]
    fn what_is_not_handed_out_yet_is_never_covered() {
        // Tag 2 waits in the buffer of another consumer of the channel.
        let mut ledger = Ledger::default();
        [1, 3, 4].into_iter().for_each(|tag| ledger.hand_out(tag));
        assert_eq!(ledger.done(&[1, 3, 4]), Acks { up_to: None, single: vec![3, 4, 1] });
        ledger.hand_out(2);
        assert_eq!(ledger.done(&[2]), Acks { up_to: None, single: vec![2] });
    }

    #[test]
    fn what_is_settled_behind_one_tag_takes_no_room() {
        const COUNT: u64 = 100_000;
        let mut ledger = ledger(1..=COUNT);
        for first in (2..COUNT - 3).step_by(3) {
            assert_eq!(ledger.done(&[first, first + 2, first + 1]).up_to, None);
            assert_eq!(ledger.above.len(), 1);
        }
        assert_eq!(ledger.done(&[1]).single, [1]);
        assert!(ledger.above.is_empty() && ledger.floor >= COUNT - 5, "{}", ledger.floor);
    }

    #[test]
    fn a_released_tag_does_not_stop_the_prefix() {
        let mut ledger = ledger(1..=4);
        ledger.release(2);
        assert_eq!(ledger.done(&[1, 3]), Acks { up_to: Some(3), single: vec![] });
        assert!(ledger.is_outstanding(4) && !ledger.is_outstanding(2));
    }
}
