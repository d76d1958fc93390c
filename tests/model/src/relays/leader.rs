//! The work of a leading relay on its part of the log.

use super::breakage::Breakage;
use super::state::Leader;
use super::{Relays, State};
use crate::sets::{Cursor, Entry, Read, Set};

impl Leader {
    /// Creates the memory of a relay that has just been granted the lease, and continues from the
    /// stored cursor.
    pub(super) fn new(epoch: u8, stored: Cursor) -> Self {
        let none = Set::default();
        Self { epoch, stored, run: Vec::new(), sent: none, arrived: none, confirmed: none, lost: none }
    }

    /// Returns the entry that a snapshot taken now adds to the run.
    pub(super) fn next_read(&self, model: &Relays, state: &State) -> Option<Read> {
        let position = self.run.last().map_or(self.stored, |read| read.cursor());
        next_read(model, position, state.visible())
    }

    /// Reads the current difference, or the next one, to its end.
    pub(super) fn read(&mut self, model: &Relays, state: &State) {
        let first = self.next_read(model, state);
        while let Some(read) = self.next_read(model, state)
            && first.is_some_and(|first| first.base == read.base)
        {
            self.run.push(read);
        }
    }

    /// Returns whether the message at this position may be sent: the earlier ones of its key have
    /// been sent, and are confirmed if the broker accepts one at a time.
    pub(super) fn may_send(&self, model: &Relays, place: Entry) -> bool {
        let key = |place: Entry| model.key(self.run[usize::from(place)].entry);
        let ahead = if model.is_pipelined { self.sent } else { self.confirmed };
        let is_behind = |earlier: Entry| {
            let may_pass = model.breakage == Breakage::RetryOvertakes && self.lost.has(earlier);
            key(earlier) != key(place) || ahead.has(earlier) || may_pass
        };
        !self.sent.has(place) && (0..place).all(is_behind)
    }

    /// Returns the places of messages in flight, only the first of each key: a session keeps their
    /// order.
    pub(super) fn arriving(&self, model: &Relays) -> Vec<Entry> {
        let on_the_way: Vec<Entry> = self.sent.without(self.arrived).iter().collect();
        let entries: Vec<Entry> =
            on_the_way.iter().map(|place| self.run[usize::from(*place)].entry).collect();
        first_of_each_key(model, &entries).into_iter().map(|index| on_the_way[index]).collect()
    }

    /// Returns the entries that may still arrive if this session is abandoned.
    pub(super) fn in_flight(&self) -> Vec<Entry> {
        self.sent.without(self.arrived).iter().map(|place| self.run[usize::from(place)].entry).collect()
    }

    /// Begins a new session: messages without a confirmation are sent again.
    pub(super) fn reconnect(&mut self) {
        self.lost = self.sent.without(self.confirmed);
        self.sent = self.confirmed;
        self.arrived = self.confirmed;
    }

    /// Returns how many entries of the run are settled, and the cursor behind them.
    pub(super) fn checkpoint(&self, breakage: Breakage) -> Option<(usize, Cursor)> {
        let contiguous = (0..self.run.len()).take_while(|place| self.confirmed.has(*place as Entry)).count();
        let settled = match breakage {
            Breakage::CheckpointAhead => self.run.len(),
            Breakage::CheckpointOverGaps => {
                self.confirmed.iter().last().map_or(0, |place| usize::from(place) + 1)
            }
            _ => contiguous,
        };
        let last = settled.checked_sub(1)?;
        Some((settled, self.run[last].cursor()))
    }

    /// Forgets the entries behind the stored cursor.
    pub(super) fn advance(&mut self, settled: usize, stored: Cursor) {
        self.stored = stored;
        self.run.drain(..settled);
        for places in [&mut self.sent, &mut self.arrived, &mut self.confirmed, &mut self.lost] {
            places.0 = places.0.checked_shr(settled as u32).unwrap_or(0);
        }
    }
}

fn next_read(model: &Relays, position: Cursor, visible: Set) -> Option<Read> {
    if model.breakage != Breakage::CursorById {
        return position.next(visible);
    }
    let last = position.progress.map(|(_, after)| after);
    let entry = visible.iter().find(|entry| last.is_none_or(|last| *entry > last))?;
    let below = visible.iter().filter(|other| *other < entry).fold(Set::default(), Set::with);
    Some(Read { entry, base: below, head: below.with(entry) })
}

/// Returns the entries that a relay will read if it loads this cursor now.
pub(super) fn still_to_read(model: &Relays, mut cursor: Cursor, visible: Set) -> Set {
    let mut to_read = Set::default();
    while let Some(read) = next_read(model, cursor, visible) {
        to_read = to_read.with(read.entry);
        cursor = read.cursor();
    }
    to_read
}

/// Returns the indexes of the entries that come first among those of their key.
pub(super) fn first_of_each_key(model: &Relays, entries: &[Entry]) -> Vec<usize> {
    let is_first = |index: &usize| {
        entries[..*index].iter().all(|earlier| model.key(*earlier) != model.key(entries[*index]))
    };
    (0..entries.len()).filter(is_first).collect()
}
