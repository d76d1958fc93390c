//! Entries in memory: read, but not yet settled. Bounded in bytes and entries. Pure.
//!
//! Those of the log are a ring in reading order. The cursor stands before the oldest unsettled
//! entry; entries settle in any order, and the front of the ring advances when it can. Those that
//! were parked are beside the ring: the cursor has passed them, and does not wait for them.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use message::{Message, Ticket};
use outbox_log::{Cursor, Difference, DueKind, Entry, EntryId};

use crate::amount::Amount;
use crate::silence::Submitted;

/// Source of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Read from the log: settling it lets the cursor move.
    Log(Arc<Difference>),
    /// Read from the exceptions, due now: it bypasses the block that it causes itself.
    Due(DueKind),
    /// Read from the exceptions, held until now.
    Held,
}

/// An entry in memory.
#[derive(Debug)]
pub(crate) struct Item {
    /// Its position in the log.
    pub(crate) id: EntryId,
    /// The message to publish.
    pub(crate) message: Arc<Message>,
    /// Its bytes on the wire, in all of its chunks.
    pub(crate) bytes: usize,
    /// Its source.
    pub(crate) origin: Origin,
    /// Failed attempts that counted.
    pub(crate) attempts: u32,
    /// The submission, while the message is with the publisher and not answered.
    pub(crate) in_flight: Option<Submitted>,
    /// Whether it waits until the held entries before it have been read back.
    pub(crate) waits: bool,
}

impl Item {
    /// Returns the ordering key as text.
    #[must_use]
    pub(crate) fn key(&self) -> Option<&str> {
        self.message.key.as_ref().map(message::OrderingKey::as_str)
    }

    /// Returns whether the destination has already refused this message, and the entry is due
    /// again. Nothing of its key is queued behind it: the key waits outside of memory.
    #[must_use]
    pub(crate) fn was_refused(&self) -> bool {
        matches!(self.origin, Origin::Due(_)) && self.attempts > 0
    }
}

#[derive(Debug)]
enum Slot {
    Open(Item),
    /// Settled; remembered until everything before it is settled as well.
    Settled(Passed),
}

/// The position that the cursor passes when a settled slot leaves the ring.
#[derive(Debug)]
enum Passed {
    Entry {
        difference: Arc<Difference>,
        id: EntryId,
        is_parked: bool,
    },
    /// The last of consecutive entries that are left to other relays.
    LeftOut {
        difference: Arc<Difference>,
        id: EntryId,
    },
    End(Arc<Difference>),
}

/// The unsettled entries. Tickets of slots are even, those of entries beside the ring are odd.
#[derive(Debug)]
pub(crate) struct Window {
    /// Entries of the log in reading order, as a ring.
    slots: VecDeque<Slot>,
    /// The number of the front slot.
    front: u64,
    /// Open entries that were parked, by their tickets.
    beside: BTreeMap<Ticket, Item>,
    /// How many entries have been beside the ring.
    beside_len: u64,
    open: usize,
    bytes: usize,
    /// The open entries of the log.
    log: Amount,
    /// The open entries that were held and read back.
    held: Amount,
    /// The open entries that were scheduled for now.
    scheduled: Amount,
    /// The open entries that are retried.
    retrying: Amount,
    bytes_max: usize,
    entries_max: usize,
    /// Maximum parked entries that one checkpoint stores.
    parked_max: usize,
    cursor: Cursor,
    /// The last entry passed inside the current difference; merged into `cursor` on demand.
    passed: Option<(Arc<Difference>, EntryId)>,
    /// Parked entries that the cursor has passed since the last [`Window::take_passed`].
    parked: Vec<EntryId>,
}

impl Window {
    /// Creates an empty window at a cursor. With each checkpoint the cursor passes at most
    /// `parked_max` parked entries.
    #[must_use]
    pub(crate) fn new(cursor: Cursor, bytes_max: usize, entries_max: usize, parked_max: usize) -> Self {
        Self {
            slots: VecDeque::new(),
            front: 0,
            beside: BTreeMap::new(),
            beside_len: 0,
            open: 0,
            bytes: 0,
            log: Amount::default(),
            held: Amount::default(),
            scheduled: Amount::default(),
            retrying: Amount::default(),
            bytes_max,
            entries_max,
            parked_max,
            cursor,
            passed: None,
            parked: Vec::new(),
        }
    }

    /// Returns whether another page fits while a fraction `1/kept` of the window stays free for
    /// others.
    #[must_use]
    pub(crate) fn has_room(&self, kept: Option<usize>) -> bool {
        let limit = |max: usize| kept.map_or(max, |kept| max - max / kept);
        self.bytes < limit(self.bytes_max) && self.slots.len() + self.beside.len() < limit(self.entries_max)
    }

    /// Returns whether entries of the log take less than a fraction `1/share` of the window.
    #[must_use]
    pub(crate) fn has_room_for_log(&self, share: usize) -> bool {
        !self.log.reaches(self.share(share))
    }

    /// Returns whether held entries that were read back take less than a fraction `1/share` of the
    /// window.
    #[must_use]
    pub(crate) fn has_room_for_held(&self, share: usize) -> bool {
        !self.held.reaches(self.share(share))
    }

    /// Returns whether due entries of a kind take less than a fraction `1/share` of the window.
    #[must_use]
    pub(crate) fn has_room_for_due(&self, kind: DueKind, share: usize) -> bool {
        let due = match kind {
            DueKind::Scheduled => self.scheduled,
            DueKind::Retrying => self.retrying,
        };
        !due.reaches(self.share(share))
    }

    fn share(&self, share: usize) -> Amount {
        Amount { entries: (self.entries_max / share).max(1), bytes: (self.bytes_max / share).max(1) }
    }

    /// Returns what the open entries of the same source as this one take.
    fn amount_of(&mut self, origin: &Origin) -> &mut Amount {
        match origin {
            Origin::Log(_) => &mut self.log,
            Origin::Due(DueKind::Scheduled) => &mut self.scheduled,
            Origin::Due(DueKind::Retrying) => &mut self.retrying,
            Origin::Held => &mut self.held,
        }
    }

    /// Returns whether the cursor has passed everything that was read.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the number of unsettled entries.
    #[must_use]
    pub(crate) fn open_len(&self) -> usize {
        self.open
    }

    /// Returns the bytes of the unsettled entries.
    #[must_use]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds an entry and returns the ticket that names it from now on.
    pub(crate) fn push(&mut self, item: Item) -> Ticket {
        self.open += 1;
        self.bytes += item.bytes;
        let is_of_log = matches!(item.origin, Origin::Log(_));
        let amount = self.amount_of(&item.origin);
        *amount = amount.plus(Amount::of(item.bytes));
        if !is_of_log {
            self.beside_len += 1;
            let ticket = Ticket(self.beside_len * 2 + 1);
            self.beside.insert(ticket, item);
            return ticket;
        }
        self.push_slot(Slot::Open(item))
    }

    /// Records an entry of the log that is settled without being published, because it is parked.
    pub(crate) fn pass(&mut self, difference: &Arc<Difference>, id: EntryId) {
        let difference = Arc::clone(difference);
        self.push_slot(Slot::Settled(Passed::Entry { difference, id, is_parked: true }));
        self.advance();
    }

    /// Records an entry of the log that was published before it was read.
    pub(crate) fn skip(&mut self, difference: &Arc<Difference>, id: EntryId) {
        let difference = Arc::clone(difference);
        self.push_slot(Slot::Settled(Passed::Entry { difference, id, is_parked: false }));
        self.advance();
    }

    /// Records an entry that another relay publishes. A run of such entries takes the space of one.
    pub(crate) fn leave_out(&mut self, difference: &Arc<Difference>, id: EntryId) {
        if let Some(Slot::Settled(Passed::LeftOut { difference: before, id: last })) = self.slots.back_mut()
            && Arc::ptr_eq(before, difference)
        {
            *last = id;
            return;
        }
        let difference = Arc::clone(difference);
        self.push_slot(Slot::Settled(Passed::LeftOut { difference, id }));
        self.advance();
    }

    /// Records that a difference has been read to its end.
    pub(crate) fn end(&mut self, difference: &Arc<Difference>) {
        self.push_slot(Slot::Settled(Passed::End(Arc::clone(difference))));
        self.advance();
    }

    fn push_slot(&mut self, slot: Slot) -> Ticket {
        let ticket = self.ticket(self.slots.len());
        self.slots.push_back(slot);
        ticket
    }

    fn ticket(&self, index: usize) -> Ticket {
        Ticket((self.front + index as u64) * 2)
    }

    /// Returns the slot of a ticket.
    fn slot_mut(&mut self, ticket: Ticket) -> Option<&mut Slot> {
        let index = (ticket.0 / 2).checked_sub(self.front).filter(|_| ticket.0.is_multiple_of(2))?;
        self.slots.get_mut(usize::try_from(index).ok()?)
    }

    /// Returns the entry of a ticket, unless it is settled.
    pub(crate) fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Item> {
        if !ticket.0.is_multiple_of(2) {
            return self.beside.get_mut(&ticket);
        }
        match self.slot_mut(ticket)? {
            Slot::Open(item) => Some(item),
            Slot::Settled(_) => None,
        }
    }

    /// Settles an entry, confirmed or parked: it leaves memory, and the cursor moves as far as it
    /// can. Returns `None` if it was settled before.
    pub(crate) fn settle(&mut self, ticket: Ticket, is_parked: bool) -> Option<Item> {
        let item = match self.beside.remove(&ticket) {
            Some(item) => item,
            None => self.settle_slot(ticket, is_parked)?,
        };
        self.open -= 1;
        self.bytes -= item.bytes;
        let amount = self.amount_of(&item.origin);
        *amount = amount.minus(Amount::of(item.bytes));
        self.advance();
        Some(item)
    }

    fn settle_slot(&mut self, ticket: Ticket, is_parked: bool) -> Option<Item> {
        let slot = self.slot_mut(ticket)?;
        let Slot::Open(Item { id, origin: Origin::Log(difference), .. }) = slot else { return None };
        let passed = Passed::Entry { difference: Arc::clone(difference), id: *id, is_parked };
        match std::mem::replace(slot, Slot::Settled(passed)) {
            Slot::Open(item) => Some(item),
            Slot::Settled(_) => None,
        }
    }

    /// Moves the cursor, but not past more parked entries than one checkpoint stores.
    fn advance(&mut self) {
        while let Some(Slot::Settled(passed)) = self.slots.front() {
            if self.parked.len() >= self.parked_max && matches!(passed, Passed::Entry { is_parked: true, .. })
            {
                return;
            }
            let Some(Slot::Settled(passed)) = self.slots.pop_front() else { return };
            self.front += 1;
            match passed {
                Passed::Entry { difference, id, is_parked } => {
                    if is_parked {
                        self.parked.push(id);
                    }
                    self.passed = Some((difference, id));
                }
                Passed::LeftOut { difference, id } => self.passed = Some((difference, id)),
                Passed::End(difference) => {
                    self.passed = None;
                    self.cursor = Cursor::at(difference.head.clone());
                }
            }
        }
    }

    /// Returns the cursor from which a successor would continue.
    pub(crate) fn cursor(&mut self) -> &Cursor {
        if let Some((difference, id)) = self.passed.take() {
            self.cursor = Cursor::inside(&difference, id);
        }
        &self.cursor
    }

    /// Returns how many parked entries the cursor has passed since the last
    /// [`Window::take_passed`].
    #[must_use]
    pub(crate) fn parked_len(&self) -> usize {
        self.parked.len()
    }

    /// Takes the cursor and the parked entries that it has passed since the last call; they are
    /// stored together. Afterwards the cursor may move on.
    pub(crate) fn take_passed(&mut self) -> (Cursor, Vec<EntryId>) {
        let cursor = self.cursor().clone();
        let parked = std::mem::take(&mut self.parked);
        self.advance();
        (cursor, parked)
    }

    /// Does the same as [`Window::take_passed`], and returns the entries of the log that were
    /// published although this cursor has not passed them.
    pub(crate) fn take_settled(&mut self) -> (Cursor, Vec<EntryId>, BTreeSet<EntryId>) {
        // Collected before the cursor moves on: entries that it passes then are still ahead of the
        // returned cursor.
        let ahead = self.slots.iter().filter_map(|slot| match slot {
            Slot::Settled(Passed::Entry { id, is_parked: false, .. }) => Some(*id),
            _ => None,
        });
        let ahead = ahead.collect();
        let (cursor, parked) = self.take_passed();
        (cursor, parked, ahead)
    }

    /// Returns all open entries with their tickets: those of the log in reading order, then those
    /// that were parked.
    pub(crate) fn open(&self) -> impl Iterator<Item = (Ticket, &Item)> {
        let of_log = self.slots.iter().enumerate().filter_map(|(index, slot)| match slot {
            Slot::Open(item) => Some((self.ticket(index), item)),
            Slot::Settled(_) => None,
        });
        of_log.chain(self.beside.iter().map(|(ticket, item)| (*ticket, item)))
    }

    /// Returns a function that gives the number of open entries of a topic. It counts all topics at
    /// its first call, in one pass.
    pub(crate) fn open_of(&self) -> impl Fn(&str) -> usize {
        let counts = OnceCell::new();
        move |topic| counts.get_or_init(|| self.open_by_topic()).get(topic).copied().unwrap_or_default()
    }

    fn open_by_topic(&self) -> HashMap<&str, usize> {
        let mut counts = HashMap::new();
        for (_, item) in self.open() {
            *counts.entry(item.message.topic.as_str()).or_default() += 1;
        }
        counts
    }

    /// Returns an id that names one entry here and a different one among `entries`.
    #[must_use]
    pub(crate) fn shared_id(&self, entries: &HashMap<EntryId, &Entry>) -> Option<EntryId> {
        let is_shared = |item: &Item| {
            let entry = entries.get(&item.id)?;
            (item.message.id.to_string() != entry.message_id()).then_some(item.id)
        };
        let in_ring = self.slots.iter().find_map(|slot| match slot {
            Slot::Open(item) => is_shared(item),
            // The log returns no entry twice, so the same id belongs to a different entry.
            Slot::Settled(Passed::Entry { id, .. }) => entries.contains_key(id).then_some(*id),
            Slot::Settled(Passed::LeftOut { .. } | Passed::End(_)) => None,
        });
        in_ring.or_else(|| self.beside.values().find_map(is_shared))
    }

    /// Returns the ids and tickets of all open entries.
    #[must_use]
    pub(crate) fn open_tickets(&self) -> Vec<(EntryId, Ticket)> {
        self.open().map(|(ticket, item)| (item.id, ticket)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use message::{EventType, Topic};
    use outbox_log::Mark;

    fn difference() -> Arc<Difference> {
        Arc::new(Difference { base: Mark::new("a"), head: Mark::new("b"), ceiling: 9 })
    }

    fn item(id: i64, origin: Origin) -> Item {
        let message = Message::new(Topic::new("t").unwrap(), EventType::new("k").unwrap(), "payload");
        let bytes = message.wire_bytes();
        let message = message.into();
        Item { id: EntryId(id), message, bytes, origin, attempts: 0, in_flight: None, waits: false }
    }

    #[test]
    fn the_cursor_waits_for_the_oldest_unsettled_entry() {
        let d = difference();
        let start = Cursor::at(d.base.clone());
        let mut window = Window::new(start.clone(), 1 << 20, 100, 9);
        let tickets: Vec<_> = (1..=3).map(|id| window.push(item(id, Origin::Log(d.clone())))).collect();
        window.end(&d);
        window.settle(tickets[1], false);
        window.settle(tickets[2], false);
        assert_eq!(window.cursor(), &start, "entry 1 is still unsettled");
        window.settle(tickets[0], false);
        assert_eq!(window.cursor(), &Cursor::at(d.head.clone()));
        assert_eq!((window.open_len(), window.bytes()), (0, 0));
    }

    #[test]
    fn inside_a_difference_the_cursor_names_the_last_settled_entry() {
        let d = difference();
        let mut window = Window::new(Cursor::at(d.base.clone()), 1 << 20, 100, 9);
        let first = window.push(item(1, Origin::Log(d.clone())));
        window.push(item(2, Origin::Log(d.clone())));
        window.settle(first, false);
        assert_eq!(window.cursor(), &Cursor::inside(&d, EntryId(1)));
        assert!(window.settle(first, false).is_none(), "a ticket settles once");
    }

    #[test]
    fn parked_entries_neither_move_the_cursor_nor_keep_it() {
        let d = difference();
        let start = Cursor::at(d.base.clone());
        let mut window = Window::new(start.clone(), 1 << 20, 100, 9);
        let parked = window.push(item(1, Origin::Due(DueKind::Retrying)));
        window.settle(parked, false);
        assert_eq!(window.cursor(), &start);
        let held = window.push(item(2, Origin::Held));
        let read = window.push(item(3, Origin::Log(d.clone())));
        let ids: Vec<_> = window.open_tickets();
        assert_eq!(ids, [(EntryId(3), read), (EntryId(2), held)]);
        window.settle(read, false);
        assert_eq!(window.cursor(), &Cursor::inside(&d, EntryId(3)));
        assert_eq!((window.open_len(), window.is_empty()), (1, true));
        assert!(window.settle(held, false).is_some() && window.settle(held, false).is_none());
    }

    #[test]
    fn the_window_is_bounded_in_bytes() {
        let mut window = Window::new(Cursor::at(Mark::new("a")), 1, 100, 9);
        assert!(window.has_room(None), "one entry always passes");
        window.push(item(1, Origin::Due(DueKind::Retrying)));
        assert!(!window.has_room(None));
    }

    #[test]
    fn what_left_ahead_of_the_cursor_is_named_until_the_cursor_passes_it() {
        let d = difference();
        let mut window = Window::new(Cursor::at(d.base.clone()), 1 << 20, usize::MAX, 1);
        let open = window.push(item(1, Origin::Log(d.clone())));
        window.skip(&d, EntryId(2));
        window.pass(&d, EntryId(3));
        let left = window.push(item(4, Origin::Log(d.clone())));
        window.pass(&d, EntryId(5));
        let last = window.push(item(6, Origin::Log(d.clone())));
        [left, last].iter().for_each(|ticket| _ = window.settle(*ticket, false));
        let (_, parked, settled) = window.take_settled();
        assert_eq!((parked, settled), (vec![], [2, 4, 6].map(EntryId).into()));
        window.settle(open, false);
        let (cursor, parked, settled) = window.take_settled();
        assert_eq!(cursor, Cursor::inside(&d, EntryId(4)), "one parked entry with each checkpoint");
        assert_eq!((parked, settled), (vec![EntryId(3)], [6].map(EntryId).into()));
        let (cursor, parked, settled) = window.take_settled();
        assert_eq!(cursor, Cursor::inside(&d, EntryId(6)));
        assert_eq!((parked, settled), (vec![EntryId(5)], [].into()));
    }

    #[test]
    fn entries_of_other_relays_take_no_room() {
        let (first, second) = (difference(), difference());
        let mut window = Window::new(Cursor::at(first.base.clone()), 1 << 20, 100, 9);
        let open = window.push(item(1, Origin::Log(first.clone())));
        (2..=90_000).for_each(|id| window.leave_out(&first, EntryId(id)));
        window.end(&first);
        (90_001..=99_999).for_each(|id| window.leave_out(&second, EntryId(id)));
        assert!(window.has_room(None), "{} slots", window.slots.len());
        assert_eq!(window.cursor(), &Cursor::at(first.base.clone()));
        window.settle(open, false);
        assert_eq!(window.cursor(), &Cursor::inside(&second, EntryId(99_999)));
        (100_000..=200_000).for_each(|id| window.leave_out(&second, EntryId(id)));
        assert_eq!(window.cursor(), &Cursor::inside(&second, EntryId(200_000)));
        assert!(window.slots.is_empty());
    }

    #[test]
    fn what_left_ahead_of_the_cursor_is_named_one_by_one_and_what_is_left_out_is_not() {
        let d = difference();
        let mut window = Window::new(Cursor::at(d.base.clone()), 1 << 20, 100, 9);
        let open = window.push(item(1, Origin::Log(d.clone())));
        let left = window.push(item(2, Origin::Log(d.clone())));
        window.settle(left, false);
        window.leave_out(&d, EntryId(3));
        window.leave_out(&d, EntryId(4));
        [5, 6].iter().for_each(|id| window.skip(&d, EntryId(*id)));
        window.leave_out(&d, EntryId(7));
        let (_, _, settled) = window.take_settled();
        assert_eq!(settled, [2, 5, 6].map(EntryId).into());
        window.settle(open, false);
        assert_eq!(window.cursor(), &Cursor::inside(&d, EntryId(7)));
    }

    #[test]
    fn the_cursor_passes_no_more_parked_entries_than_one_checkpoint_stores() {
        let d = difference();
        let mut window = Window::new(Cursor::at(d.base.clone()), 1 << 20, usize::MAX, 3);
        let all = 7;
        (1..=all).for_each(|id| window.pass(&d, EntryId(id)));
        let mut stored = Vec::new();
        for last in [3, 6, all] {
            let (cursor, parked) = window.take_passed();
            assert_eq!(cursor, Cursor::inside(&d, EntryId(last)));
            stored.extend(parked.into_iter().map(|id| id.0));
        }
        assert!(stored.into_iter().eq(1..=all));
    }
}
