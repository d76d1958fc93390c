//! Tracks which deliveries are unsettled, and how far each partition may be committed. Pure, except
//! for the token numbers.
//!
//! Kafka has no acknowledgement of single messages, only one offset per partition below which
//! everything is done. So a delivery that is done waits here until everything before it is done.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use message::DeliveryToken;

/// Numbers the deliveries of this process. A token of an earlier subscription is thus recognized:
/// it must not settle a delivery of the next one.
static TOKENS: AtomicU64 = AtomicU64::new(1);

/// A partition: topic and number.
pub(super) type Place = (Arc<str>, i32);

/// All partitions that this member holds.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    lanes: HashMap<Place, Lane>,
    tokens: HashMap<DeliveryToken, (Place, i64)>,
}

/// One partition.
#[derive(Debug, Default)]
struct Lane {
    /// Unsettled deliveries in the order of their offsets, and the last one of each run of done
    /// deliveries between them. There are no more runs than unsettled deliveries, however long one
    /// of them holds up the position.
    entries: VecDeque<Entry>,
    /// Everything below is done: the next offset to commit.
    position: Option<i64>,
    /// Whether `position` moved since `Ledger::moved` was last called.
    moved: bool,
    /// Whether reading went back to a released delivery, which has not come again.
    went_back: bool,
    /// The first offset that was never delivered.
    next: i64,
}

impl Lane {
    /// Removes the entries from this offset on.
    fn drain_from(&mut self, offset: i64) -> impl Iterator<Item = Entry> {
        let from = self.entries.partition_point(|entry| entry.offset < offset);
        self.entries.drain(from..)
    }

    /// Marks the delivery at an offset as done.
    fn done(&mut self, offset: i64) {
        let Ok(at) = self.entries.binary_search_by_key(&offset, |entry| entry.offset) else { return };
        let is_done = |at: usize| self.entries.get(at).is_some_and(|entry| entry.done);
        let (joins_next, joins_previous) = (is_done(at + 1), at > 0 && is_done(at - 1));
        if joins_next {
            self.entries.remove(at);
        } else if let Some(entry) = self.entries.get_mut(at) {
            entry.done = true;
        }
        if joins_previous {
            self.entries.remove(at - 1);
        }
        while let Some(first) = self.entries.pop_front_if(|entry| entry.done) {
            self.position = Some(first.offset + 1);
            self.moved = true;
        }
    }
}

#[derive(Debug)]
struct Entry {
    offset: i64,
    token: DeliveryToken,
    done: bool,
}

impl Ledger {
    /// Records where partitions begin, as already committed. These positions are committed again
    /// like others, even if no delivery ever arrives.
    pub(super) fn begin(&mut self, positions: Vec<(Place, i64)>) {
        for (place, offset) in positions {
            self.lanes.entry(place).or_default().position = Some(offset);
        }
    }

    /// Records a delivery. Returns its token and whether its offset was delivered before.
    pub(super) fn deliver(&mut self, place: &Place, offset: i64) -> (DeliveryToken, bool) {
        let token = DeliveryToken(TOKENS.fetch_add(1, Ordering::Relaxed));
        let lane = self.lanes.entry(place.clone()).or_default();
        // The consumer went back (a release, an offset reset): earlier deliveries from here on are
        // void.
        lane.drain_from(offset).for_each(|entry| {
            self.tokens.remove(&entry.token);
        });
        // Only an offset reset leads below the position, as for a recreated topic: the messages
        // there are not done. The first delivery also sets a position. It distinguishes a partition
        // that was begun from one that was not, even if nothing in it is done.
        lane.moved |= lane.position.is_none();
        lane.position = Some(lane.position.map_or(offset, |position| position.min(offset)));
        let redelivered = offset < lane.next;
        lane.went_back = false;
        lane.next = lane.next.max(offset + 1);
        lane.entries.push_back(Entry { offset, token, done: false });
        self.tokens.insert(token, (place.clone(), offset));
        (token, redelivered)
    }

    /// Returns whether this member may still settle a delivery.
    pub(super) fn knows(&self, token: DeliveryToken) -> bool {
        self.tokens.contains_key(&token)
    }

    /// Returns whether every delivery is settled, or no longer this member's.
    pub(super) fn is_settled(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Marks a delivery as done. Ignores an unknown token.
    pub(super) fn done(&mut self, token: DeliveryToken) {
        let Some((place, offset)) = self.tokens.remove(&token) else { return };
        if let Some(lane) = self.lanes.get_mut(&place) {
            lane.done(offset);
        }
    }

    /// Releases a delivery: forgets it and everything after it in its partition. Returns where to
    /// continue reading. Ignores an unknown token.
    pub(super) fn release(&mut self, token: DeliveryToken) -> Option<(Place, i64)> {
        let (place, offset) = self.tokens.get(&token)?.clone();
        let lane = self.lanes.get_mut(&place)?;
        lane.went_back = true;
        lane.drain_from(offset).for_each(|entry| {
            self.tokens.remove(&entry.token);
        });
        Some((place, offset))
    }

    /// Records that everything below this offset was delivered, if there was a message. Markers of
    /// broker transactions take offsets and are never delivered: the position of a partition in
    /// which nothing is unsettled passes them.
    ///
    /// Otherwise the position would stay at a marker at the end of a partition. It would count as
    /// lag, and when Kafka removes it, that would look like the loss of a message.
    pub(super) fn passed(&mut self, place: &Place, offset: i64) {
        // Without a lane, the beginning of this assignment is unknown: the client may still have
        // the position of an earlier one (`offsets::distrust_earlier`).
        let Some(lane) = self.lanes.get_mut(place) else { return };
        let is_behind = lane.position.is_some_and(|position| position < offset);
        if is_behind && lane.entries.is_empty() && !lane.went_back {
            lane.position = Some(offset);
            lane.moved = true;
        }
    }

    /// Forgets a partition that now belongs to another member. Returns its position.
    pub(super) fn forget(&mut self, place: &Place) -> Option<i64> {
        let lane = self.lanes.remove(place)?;
        for entry in lane.entries {
            self.tokens.remove(&entry.token);
        }
        lane.position
    }

    /// Returns the positions that moved since the last call, to be committed now.
    pub(super) fn moved(&mut self) -> Vec<(Place, i64)> {
        let moved = self.lanes.iter_mut().map(|(place, lane)| (std::mem::take(&mut lane.moved), place, lane));
        moved
            .filter_map(|(moved, place, lane)| Some((place.clone(), lane.position.filter(|_| moved)?)))
            .collect()
    }

    /// Returns all positions, to be committed again or at the end.
    pub(super) fn positions(&self) -> Vec<(Place, i64)> {
        self.lanes.iter().filter_map(|(place, lane)| Some((place.clone(), lane.position?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(partition: i32) -> Place {
        (Arc::from("orders"), partition)
    }

    fn deliver(ledger: &mut Ledger, partition: i32, offsets: &[i64]) -> Vec<DeliveryToken> {
        offsets.iter().map(|offset| ledger.deliver(&place(partition), *offset).0).collect()
    }

    #[test]
    fn only_the_contiguous_prefix_is_committed() {
        let mut ledger = Ledger::default();
        // Offsets have holes: compacted records, transaction markers.
        let tokens = deliver(&mut ledger, 0, &[10, 11, 14, 15]);
        assert_eq!(ledger.moved(), [(place(0), 10)], "where it begins");
        ledger.done(tokens[1]);
        ledger.done(tokens[2]);
        assert!(ledger.moved().is_empty());
        ledger.done(tokens[0]);
        assert_eq!(ledger.moved(), [(place(0), 15)]);
        assert!(ledger.moved().is_empty());
        ledger.done(tokens[3]);
        assert_eq!(ledger.positions(), [(place(0), 16)]);
    }

    #[test]
    fn a_release_takes_everything_after_it_back() {
        let mut ledger = Ledger::default();
        let tokens = deliver(&mut ledger, 0, &[1, 2, 3]);
        let other = deliver(&mut ledger, 1, &[7]);
        assert_eq!(ledger.moved().len(), 2, "where they begin");
        ledger.done(tokens[2]);
        assert_eq!(ledger.release(tokens[1]), Some((place(0), 2)));
        assert!(ledger.release(tokens[2]).is_none());
        assert!(ledger.knows(tokens[0]) && ledger.knows(other[0]) && !ledger.knows(tokens[1]));
        let (again, redelivered) = ledger.deliver(&place(0), 2);
        assert!(redelivered && !ledger.deliver(&place(0), 4).1);
        ledger.done(tokens[0]);
        ledger.done(again);
        assert_eq!(ledger.moved(), [(place(0), 3)]);
    }

    #[test]
    fn what_waits_behind_one_unsettled_delivery_takes_no_room() {
        const COUNT: i64 = 100_000;
        let mut ledger = Ledger::default();
        let head = deliver(&mut ledger, 0, &[0])[0];
        // In threes that are settled backwards: each joins the next, and the last one the previous.
        for first in (1..COUNT).step_by(3) {
            let tokens = deliver(&mut ledger, 0, &[first, first + 1, first + 2]);
            tokens.into_iter().rev().for_each(|token| ledger.done(token));
            assert!(ledger.lanes[&place(0)].entries.len() <= 2 && ledger.tokens.len() == 1);
        }
        // A release also forgets the done delivery behind it.
        let last = deliver(&mut ledger, 0, &[COUNT, COUNT + 1]);
        ledger.done(last[1]);
        assert_eq!(ledger.release(last[0]), Some((place(0), COUNT)));
        ledger.done(head);
        assert_eq!(ledger.positions(), [(place(0), COUNT)]);
    }

    #[test]
    fn a_reset_into_what_is_done_leaves_the_rest_of_it_done() {
        let mut ledger = Ledger::default();
        let tokens = deliver(&mut ledger, 0, &[0, 1, 2, 3, 4]);
        tokens[1..].iter().for_each(|token| ledger.done(*token));
        let again = deliver(&mut ledger, 0, &[3]);
        ledger.done(tokens[0]);
        assert_eq!(ledger.positions(), [(place(0), 1)], "behind it is what came again");
        ledger.done(again[0]);
        assert_eq!(ledger.positions(), [(place(0), 4)]);
    }

    #[test]
    fn where_a_partition_begins_is_a_position_without_a_delivery() {
        let mut ledger = Ledger::default();
        ledger.begin(vec![(place(0), 7)]);
        assert!(ledger.moved().is_empty(), "it is committed");
        assert_eq!(ledger.positions(), [(place(0), 7)]);
        let tokens = deliver(&mut ledger, 0, &[9]);
        assert_eq!(ledger.positions(), [(place(0), 7)]);
        ledger.done(tokens[0]);
        assert_eq!(ledger.moved(), [(place(0), 10)]);
    }

    #[test]
    fn a_marker_where_a_partition_begins_is_passed_without_a_delivery() {
        let mut ledger = Ledger::default();
        ledger.begin(vec![(place(0), 7)]);
        ledger.passed(&place(0), 7);
        assert!(ledger.moved().is_empty(), "it is committed");
        ledger.passed(&place(0), 8);
        assert_eq!(ledger.moved(), [(place(0), 8)]);
        assert_eq!(ledger.forget(&place(0)), Some(8));
    }

    #[test]
    fn the_position_passes_what_is_never_delivered_once_nothing_is_unsettled() {
        let mut ledger = Ledger::default();
        ledger.passed(&place(0), 5);
        assert!(ledger.positions().is_empty(), "where it begins is unknown");
        let tokens = deliver(&mut ledger, 0, &[5, 6]);
        ledger.done(tokens[1]);
        ledger.passed(&place(0), 8);
        assert_eq!(ledger.moved(), [(place(0), 5)], "one delivery is unsettled");
        ledger.done(tokens[0]);
        assert_eq!(ledger.moved(), [(place(0), 7)]);
        ledger.passed(&place(0), 8);
        assert_eq!(ledger.moved(), [(place(0), 8)]);
        ledger.passed(&place(0), 8);
        ledger.passed(&place(0), 7);
        assert!(ledger.moved().is_empty());
        // Later messages are not affected.
        let tokens = deliver(&mut ledger, 0, &[8, 9]);
        ledger.passed(&place(0), 11);
        ledger.done(tokens[0]);
        assert_eq!(ledger.moved(), [(place(0), 9)]);
    }

    #[test]
    fn the_position_does_not_pass_a_released_delivery() {
        let mut ledger = Ledger::default();
        let tokens = deliver(&mut ledger, 0, &[5, 6]);
        ledger.done(tokens[1]);
        assert!(ledger.release(tokens[0]).is_some());
        ledger.passed(&place(0), 8);
        assert_eq!(ledger.positions(), [(place(0), 5)]);
        let again = deliver(&mut ledger, 0, &[5]);
        ledger.done(again[0]);
        // The client has read the first record again, and not the second.
        ledger.passed(&place(0), 6);
        assert_eq!(ledger.positions(), [(place(0), 6)]);
    }

    #[test]
    fn an_offset_reset_takes_the_position_back() {
        let mut ledger = Ledger::default();
        for token in deliver(&mut ledger, 0, &[98, 99]) {
            ledger.done(token);
        }
        assert_eq!(ledger.moved(), [(place(0), 100)]);
        // The topic was deleted and recreated.
        let again = deliver(&mut ledger, 0, &[0, 1]);
        assert_eq!(ledger.positions(), [(place(0), 0)]);
        ledger.done(again[0]);
        assert_eq!(ledger.moved(), [(place(0), 1)]);
    }

    #[test]
    fn tokens_of_an_earlier_subscription_are_skipped() {
        let (mut earlier, mut ledger) = (Ledger::default(), Ledger::default());
        let stale = deliver(&mut earlier, 0, &[1]);
        deliver(&mut ledger, 0, &[1]);
        ledger.done(stale[0]);
        assert!(ledger.release(stale[0]).is_none());
        assert_eq!(ledger.positions(), [(place(0), 1)]);
    }

    #[test]
    fn a_partition_has_a_position_from_its_first_delivery() {
        let mut ledger = Ledger::default();
        let tokens = deliver(&mut ledger, 0, &[7, 8]);
        assert!(ledger.release(tokens[0]).is_some(), "nothing can be finished");
        assert_eq!(ledger.moved(), [(place(0), 7)]);
        assert_eq!(ledger.forget(&place(0)), Some(7));
    }

    #[test]
    fn tokens_of_a_lost_partition_are_skipped() {
        let mut ledger = Ledger::default();
        let tokens = deliver(&mut ledger, 0, &[1, 2]);
        ledger.done(tokens[0]);
        assert_eq!(ledger.forget(&place(0)), Some(2));
        ledger.done(tokens[1]);
        assert!(ledger.release(tokens[1]).is_none() && ledger.positions().is_empty());
        // The partition comes back and starts over.
        let again = deliver(&mut ledger, 0, &[2]);
        ledger.done(tokens[1]);
        assert_eq!(ledger.positions(), [(place(0), 2)]);
        ledger.done(again[0]);
        assert_eq!(ledger.positions(), [(place(0), 3)]);
    }
}
