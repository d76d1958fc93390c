//! Tracks the partitions that this member reads, and decides when they are paused. Pure.
//!
//! librdkafka keeps the application's pause of a partition when the partition is revoked and when
//! it is assigned again. One rule makes that harmless: **a partition is paused if and only if it is
//! assigned and reading is paused.** A partition assigned during a pause is therefore paused. One
//! that is revoked during a pause is resumed first. Every change of pause or assignment passes
//! through [`Reading`], which returns the partitions to pause or resume in librdkafka.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::ledger::Place;

/// How long prefetched messages may go untaken before reading is paused, so that rebalances queued
/// behind them are served. An earlier pause would discard fetched messages for nothing.
const PAUSE_AFTER: Duration = Duration::from_secs(1);

/// Time without partitions after which a member logs that.
const IDLE_TOLD_AFTER: Duration = Duration::from_secs(10);

/// The assigned partitions and the pause.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// When each was last read.
    partitions: HashMap<Place, Option<Instant>>,
    /// Since when there has been no room.
    full_since: Option<Instant>,
    paused_since: Option<Instant>,
    idle: Idle,
    assignments: u64,
}

/// Whether this member is without partitions.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Idle {
    #[default]
    No,
    Since(Instant),
    Told,
}

/// Room for prefetched messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// At least half: worth fetching again.
    Plenty,
    /// Less than half.
    Some,
    /// No room at all.
    None,
}

/// The next step of the reader.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Take the next message or event.
    Poll,
    /// Resume these partitions, then take the next message or event.
    Resume(Vec<Place>),
    /// Pause these partitions; polling returns no message from then on.
    Pause(Vec<Place>),
    /// Do not poll: the next event could be a message.
    Wait,
}

impl Reading {
    /// Decides the next step by the remaining room.
    pub(super) fn next(&mut self, room: Room, now: Instant) -> Next {
        if room != Room::None {
            self.full_since = None;
        }
        match (room, self.paused_since) {
            (Room::Plenty, Some(_)) => {
                self.paused_since = None;
                Next::Resume(self.places())
            }
            (Room::Plenty | Room::Some, None) | (Room::Some | Room::None, Some(_)) => Next::Poll,
            (Room::None, None) => {
                let since = *self.full_since.get_or_insert(now);
                if now.duration_since(since) < PAUSE_AFTER {
                    return Next::Wait;
                }
                self.paused_since = Some(now);
                Next::Pause(self.places())
            }
        }
    }

    /// Records assigned partitions. Returns those that must be paused now.
    pub(super) fn assign(&mut self, places: Vec<Place>) -> Vec<Place> {
        self.assignments += 1;
        if !places.is_empty() {
            self.idle = Idle::No;
        }
        self.partitions.extend(places.iter().map(|place| (place.clone(), None)));
        if self.is_paused() { places } else { Vec::new() }
    }

    /// Records partitions that are about to be revoked. Returns those that must be resumed first.
    pub(super) fn revoke(&mut self, places: Vec<Place>) -> Vec<Place> {
        self.partitions.retain(|place, _| !places.contains(place));
        if self.is_paused() { places } else { Vec::new() }
    }

    /// Returns true once whenever this member has been without partitions for a while.
    pub(super) fn is_worth_telling_idle(&mut self, now: Instant) -> bool {
        match self.idle {
            Idle::No if self.partitions.is_empty() => self.idle = Idle::Since(now),
            Idle::Since(since) if now.duration_since(since) >= IDLE_TOLD_AFTER => {
                self.idle = Idle::Told;
                return true;
            }
            Idle::No | Idle::Since(_) | Idle::Told => {}
        }
        false
    }

    /// Records that a message of this partition was read.
    pub(super) fn read(&mut self, place: &Place, now: Instant) {
        if let Some(at) = self.partitions.get_mut(place) {
            *at = Some(now);
        }
    }

    /// Returns whether reading is paused.
    pub(super) fn is_paused(&self) -> bool {
        self.paused_since.is_some()
    }

    /// Returns since when reading has been paused.
    pub(super) fn paused_since(&self) -> Option<Instant> {
        self.paused_since
    }

    /// Returns the assigned partitions and when each was last read.
    pub(super) fn partitions(&self) -> impl Iterator<Item = (&Place, Option<Instant>)> {
        self.partitions.iter().map(|(place, at)| (place, *at))
    }

    /// Returns how often partitions were assigned.
    pub(super) fn assignments(&self) -> u64 {
        self.assignments
    }

    fn places(&self) -> Vec<Place> {
        self.partitions.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;

    fn places(partitions: impl IntoIterator<Item = i32>) -> Vec<Place> {
        partitions.into_iter().map(|partition| (Arc::from("orders"), partition)).collect()
    }

    #[test]
    fn a_member_without_partitions_is_told_once_until_it_gets_some() {
        let (mut reading, begin) = (Reading::default(), Instant::now());
        let told: Vec<u64> =
            (0..30).filter(|n| reading.is_worth_telling_idle(begin + Duration::from_secs(*n))).collect();
        assert_eq!(told, [10]);
        reading.assign(places([0]));
        assert!(!reading.is_worth_telling_idle(begin + Duration::from_secs(60)));
        reading.revoke(places([0]));
        let told: Vec<u64> =
            (61..90).filter(|n| reading.is_worth_telling_idle(begin + Duration::from_secs(*n))).collect();
        assert_eq!(told, [71]);
    }

    /// A model of librdkafka's state: an application's pause outlives the assignment.
    #[derive(Default)]
    struct Library {
        reading: Reading,
        assigned: BTreeSet<Place>,
        paused: BTreeSet<Place>,
    }

    impl Library {
        fn assign(&mut self, partitions: &[i32]) {
            self.assigned.extend(places(partitions.iter().copied()));
            self.paused.extend(self.reading.assign(places(partitions.iter().copied())));
        }

        fn revoke(&mut self, partitions: &[i32]) {
            for place in self.reading.revoke(places(partitions.iter().copied())) {
                self.paused.remove(&place);
            }
            for place in places(partitions.iter().copied()) {
                self.assigned.remove(&place);
            }
        }

        fn next(&mut self, room: Room, now: Instant) {
            match self.reading.next(room, now) {
                Next::Pause(list) => self.paused.extend(list),
                Next::Resume(list) => self.paused.retain(|place| !list.contains(place)),
                Next::Poll | Next::Wait => {}
            }
        }
    }

    #[test]
    fn a_partition_is_paused_if_and_only_if_it_is_assigned_and_reading_is_paused() {
        // Every sequence of six events out of: no room, plenty of room, 0 assigned, 1 assigned, 1
        // revoked, both revoked.
        for course in 0..6_u32.pow(6) {
            let (mut library, mut now) = (Library::default(), Instant::now());
            for step in 0..6 {
                now += PAUSE_AFTER;
                match course / 6_u32.pow(step) % 6 {
                    0 => library.next(Room::None, now),
                    1 => library.next(Room::Plenty, now),
                    2 => library.assign(&[0]),
                    3 => library.assign(&[1]),
                    4 => library.revoke(&[1]),
                    _ => library.revoke(&[0, 1]),
                }
                let expected =
                    if library.reading.is_paused() { library.assigned.clone() } else { BTreeSet::new() };
                assert_eq!(library.paused, expected, "course {course}, step {step}");
            }
        }
    }

    #[test]
    fn reading_pauses_after_a_while_without_room_and_goes_on_when_half_is_taken() {
        let (mut reading, start) = (Reading::default(), Instant::now());
        assert_eq!(reading.assign(places([0])), []);
        for (room, after, expected) in [
            (Room::Plenty, 0, Next::Poll),
            (Room::None, 0, Next::Wait),
            (Room::None, 900, Next::Wait),
            // A message was taken meanwhile: the time starts over.
            (Room::Some, 950, Next::Poll),
            (Room::None, 1_000, Next::Wait),
            (Room::None, 1_999, Next::Wait),
            (Room::None, 2_000, Next::Pause(places([0]))),
            (Room::None, 9_000, Next::Poll),
            (Room::Some, 9_000, Next::Poll),
            (Room::Plenty, 9_000, Next::Resume(places([0]))),
            (Room::None, 9_001, Next::Wait),
        ] {
            let next = reading.next(room, start + Duration::from_millis(after));
            assert_eq!(next, expected, "{room:?} after {after} ms");
        }
    }
}
