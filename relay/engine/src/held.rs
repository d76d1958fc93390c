//! Queues of held entries. Tracks which queues may have entries that have not been read back, and
//! from which id on. Pure.
//!
//! A queue is a key, or the entries of a topic that have no key. A resting queue is a hash and an
//! id, however much it holds: the entries are only in the database. A bounded number of queues is
//! read back at once.
//!
//! | state | what it means for a new entry of the log |
//! |---|---|
//! | resting | held |
//! | active | held: the entries stored before it are being read |
//! | active, closing | waits in the window: all entries held before it are stored soon, and then read |
//! | unknown | leaves directly: nothing of the queue is held, or all of it is in the window before this entry |
//!
//! # Why nothing is passed over
//! `from` is never above an entry that is held and has not been read back. Holding an entry lowers
//! it. An answer raises it to just past the answer's last entry, but not above entries that were
//! not stored when the query was sent (`unstored`, `missed`). An answer does not count if its
//! query began at a higher id than `from` is now. Taking in an answer ends before the first
//! entry that was not stored when the query was sent: the answer can show entries behind it
//! that were held long ago (`shown`).
//!
//! # Why nothing rests forever
//! A queue rests only while something stops its first entry, and the end of that releases the
//! queue:
//!
//! | what stops the first entry | what releases the queue |
//! |---|---|
//! | a stuck entry before it, or a submission of its key that may still be answered | the end of either |
//! | its topic, which is blocked or paused | the end of that (`topic_queues.rs`) |
//! | its topic is busy | the topic's next turn (`busy.rs`, `topic_queues.rs`) |
//! | a pause of its key | the resume |
//! | nothing, but there were too many names to remember | a walk: a queue that it does not find has nothing stored |
//! | its change is not stored | the checkpoint (`recheck`) |
//! | nothing, but its key had more than its share of the window | the same |
//!
//! An active queue is not read while enough of its key is in the window (`machine/shares.rs`). It
//! stays active, and is read once they have left. If a ready queue needs its place, it waits behind
//! that one.
//!
//! So code that gives a queue another first entry must check whether that entry is stopped:
//! `Held::read`, `Blocks::hold`, `Blocks::take_out`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::ops::Bound;

use message::Ticket;
use outbox_log::{EntryId, HeldAsk, QueueName};

/// Maximum queues that are read back at once.
const ACTIVE_MAX: usize = if cfg!(test) { 2 } else { 100 };

/// Maximum names of queues that wait for their turn. A walk over the database finds the others.
const READY_MAX: usize = if cfg!(test) { 4 } else { 2_000 };

/// A hash of a queue's name, of 96 bits: among a million names, two have the same hash once in
/// 10^17 times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct QueueHash([u32; 3]);

impl QueueHash {
    /// Returns the queue of entries with this topic and key.
    #[must_use]
    pub(crate) fn of(topic: &str, key: Option<&str>) -> Self {
        match key {
            Some(key) => Self::of_parts("k", key),
            None => Self::of_parts("t", topic),
        }
    }

    /// Returns the queue of a name.
    #[must_use]
    pub(crate) fn of_name(name: &QueueName) -> Self {
        let (kind, rest) = name.as_str().split_at_checked(1).unwrap_or_default();
        Self::of_parts(kind, rest)
    }

    fn of_parts(kind: &str, rest: &str) -> Self {
        let hash = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            hasher.write_u8(salt);
            hasher.write(kind.as_bytes());
            hasher.write(rest.as_bytes());
            hasher.finish()
        };
        let (one, other) = (hash(0), hash(1));
        #[expect(clippy::cast_possible_truncation, reason = "parts of a hash")]
        Self([(one >> 32) as u32, one as u32, other as u32])
    }
}

/// A resting queue: it is not being read back.
#[derive(Debug, Clone, Copy)]
struct Resting {
    /// Lower bound of the ids of held entries that are not yet read back.
    from: EntryId,
    /// Whether it was released and waits until a walk finds its name.
    is_owed: bool,
    /// Whether an entry of the queue was held or stored since then.
    is_touched: bool,
    /// The round of its topic in which it has no turn any more, see `topic_queues.rs`.
    round: u32,
}

/// An active queue: it is being read back.
#[derive(Debug)]
struct Active {
    name: QueueName,
    /// Lower bound of the ids of held entries that are not yet read back. `None` when nothing is
    /// left to read.
    from: Option<EntryId>,
    /// The first id of the query under way.
    asked: Option<EntryId>,
    /// Entries stored since the query was sent. The answer need not show them.
    missed: BTreeSet<EntryId>,
    /// Whether all stored entries have been read. Then new entries wait in the window.
    is_closing: bool,
    /// Tickets of log entries that wait in the window until this queue has been read back.
    waiting: Vec<Ticket>,
    /// Maximum entries to read, if its topic is busy.
    share: Option<usize>,
    /// As while it rested.
    round: u32,
}

/// A released queue that waits for its turn.
#[derive(Debug)]
struct Ready {
    name: QueueName,
    /// Maximum entries to read, if its topic is busy.
    share: Option<usize>,
}

impl Active {
    /// Returns whether it cannot be read before a checkpoint, because its first entry is not stored
    /// or only unstored entries are left.
    fn waits_for_store(&self, unstored: Option<&BTreeSet<EntryId>>) -> bool {
        let unstored = unstored.and_then(BTreeSet::first);
        unstored.is_some_and(|unstored| self.is_closing || self.from.is_some_and(|from| *unstored <= from))
    }
}

/// A walk over the names of queues in the database.
#[derive(Debug, Default)]
struct Walk {
    is_going: bool,
    after: Option<QueueName>,
    /// Whether it only looks for a single queue, so that it can end before the last name.
    is_search: bool,
    /// Whether a queue was released meanwhile. Then another walk follows this one.
    again: bool,
}

/// The extent to which an answer about a queue was taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    /// Shown up to this entry; more may follow. An entry before the first one means that the answer
    /// had no room for the queue.
    UpTo(EntryId),
    /// Up to this entry, which must keep waiting, like all behind it.
    StoppedAt(EntryId),
    /// Up to this entry, which was not stored when the query was sent.
    Unstored(EntryId),
    /// Everything that is stored.
    All,
}

/// All queues with held entries.
#[derive(Debug, Default)]
pub(crate) struct Held {
    resting: BTreeMap<QueueHash, Resting>,
    active: BTreeMap<QueueHash, Active>,
    /// The queue of which entries were read last. The next query begins behind it: its answer may
    /// have no room for the last queues.
    read_last: Option<QueueHash>,
    /// Released queues that wait for their turn, each once.
    ready: VecDeque<Ready>,
    queued: HashSet<QueueHash>,
    /// Held entries whose change is not stored.
    unstored: HashMap<QueueHash, BTreeSet<EntryId>>,
    /// Queues that were released while their first entry was not stored.
    recheck: HashSet<QueueHash>,
    walk: Walk,
    /// How many walks over all names have begun.
    walks: u64,
    /// Whether entries that waited for their queue must be checked again.
    requeue: bool,
    /// Entries that waited for their queue and may be published now.
    freed: Vec<Ticket>,
}

impl Held {
    /// Returns whether nothing is held.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.resting.is_empty() && self.active.is_empty()
    }

    /// Returns how many queues have entries that were not read back.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.resting.len() + self.active.len()
    }

    /// Returns whether queues are being read back or are about to be.
    #[must_use]
    pub(crate) fn is_reading(&self) -> bool {
        !self.active.is_empty() || !self.ready.is_empty() || self.walk.is_going
    }

    /// Loads a queue from the database.
    pub(crate) fn load(&mut self, queue: QueueHash, first: EntryId) {
        self.resting.insert(queue, Resting { from: first, is_owed: false, is_touched: false, round: 0 });
    }

    /// Returns the smallest id that a held entry of the queue can have without having been read
    /// back.
    #[must_use]
    pub(crate) fn unread(&self, queue: QueueHash) -> Option<EntryId> {
        match self.resting.get(&queue) {
            Some(resting) => Some(resting.from),
            None => self.active.get(&queue)?.from,
        }
    }

    /// Returns whether the queue has entries that were not read back.
    #[must_use]
    pub(crate) fn contains(&self, queue: QueueHash) -> bool {
        self.resting.contains_key(&queue) || self.active.contains_key(&queue)
    }

    /// Returns whether the queue is being read back, or is about to be: nothing stops it that would
    /// have to end first.
    #[must_use]
    pub(crate) fn is_moving(&self, queue: QueueHash) -> bool {
        let is_due = || self.recheck.contains(&queue) && self.unstored.contains_key(&queue);
        self.active.contains_key(&queue) || self.queued.contains(&queue) || is_due()
    }

    /// Returns whether new entries of the queue wait in the window.
    #[must_use]
    pub(crate) fn is_closing(&self, queue: QueueHash) -> bool {
        self.active.get(&queue).is_some_and(|active| active.is_closing)
    }

    /// Records that an answer shows this entry. Returns the first entry before it that was not
    /// stored when the query was sent and that the answer has not shown: nothing may pass that
    /// entry. Returns the entry itself if memory has held it again.
    pub(crate) fn shown(&mut self, queue: QueueHash, id: EntryId) -> Option<EntryId> {
        let unstored = self.unstored.get(&queue).and_then(BTreeSet::first).copied();
        let missed = self.active.get_mut(&queue).and_then(|active| {
            active.missed.remove(&id);
            active.missed.first().copied()
        });
        unstored.into_iter().chain(missed).min().filter(|first| *first <= id)
    }

    /// Records that an entry is held. Its change is not stored yet.
    pub(crate) fn hold(&mut self, queue: QueueHash, id: EntryId) {
        self.unstored.entry(queue).or_default().insert(id);
        self.lower(queue, id);
    }

    /// Records that the change that holds an entry is stored, or was replaced by another change.
    pub(crate) fn stored(&mut self, name: &QueueName, id: EntryId) {
        let queue = QueueHash::of_name(name);
        let Some(ids) = self.unstored.get_mut(&queue) else { return };
        ids.remove(&id);
        let unstored = ids.first().copied();
        if unstored.is_none() {
            self.unstored.remove(&queue);
        }
        if let Some(active) = self.active.get_mut(&queue)
            && active.asked.is_some()
        {
            active.missed.insert(id);
        }
        if let Some(resting) = self.resting.get_mut(&queue) {
            resting.is_touched = true;
        }
        let is_first_stored = self.unread(queue).is_none_or(|from| unstored.is_none_or(|id| from < id));
        if is_first_stored && self.recheck.remove(&queue) {
            self.release(name.clone());
        }
    }

    /// Records that a skipped entry has to be read after all.
    pub(crate) fn read_again(&mut self, name: QueueName, id: EntryId) {
        let queue = QueueHash::of_name(&name);
        self.lower(queue, id);
        self.release(name);
    }

    fn lower(&mut self, queue: QueueHash, id: EntryId) {
        match self.active.get_mut(&queue) {
            Some(active) => active.from = Some(active.from.map_or(id, |from| from.min(id))),
            None => {
                let new = Resting { from: id, is_owed: false, is_touched: true, round: 0 };
                let resting = self.resting.entry(queue).or_insert(new);
                (resting.from, resting.is_touched) = (id.min(resting.from), true);
            }
        }
    }

    /// Records that a queue may be able to continue.
    pub(crate) fn release(&mut self, name: QueueName) {
        self.release_share(name, None);
    }

    /// Records that a queue may be able to continue, and that at most `share` of its entries are to
    /// be read. Returns whether it rested until now.
    pub(crate) fn release_share(&mut self, name: QueueName, share: Option<usize>) -> bool {
        let queue = QueueHash::of_name(&name);
        let Some(resting) = self.resting.get_mut(&queue).filter(|_| !self.queued.contains(&queue)) else {
            return false;
        };
        if self.ready.len() < READY_MAX {
            self.ready.push_back(Ready { name, share });
            self.queued.insert(queue);
        } else {
            (resting.is_owed, resting.is_touched) = (true, false);
            self.walk();
        }
        true
    }

    /// Marks the queue to be released when its first entry is stored.
    pub(crate) fn recheck(&mut self, queue: QueueHash) {
        if self.unstored.contains_key(&queue) {
            self.recheck.insert(queue);
        }
    }

    /// Records that all queues may be able to continue.
    pub(crate) fn release_all(&mut self) {
        let resting = &self.resting;
        self.recheck.extend(self.unstored.keys().filter(|queue| resting.contains_key(queue)));
        for resting in self.resting.values_mut() {
            (resting.is_owed, resting.is_touched) = (true, false);
        }
        if !self.resting.is_empty() {
            self.walk();
        }
    }

    fn walk(&mut self) {
        if self.walk.is_going {
            self.walk.again = true;
        } else {
            self.begin_walk();
        }
    }

    fn begin_walk(&mut self) {
        self.walk = Walk { is_going: true, ..Walk::default() };
        self.walks += 1;
    }

    /// Begins to walk over the names of all queues to find resting ones, unless such a walk is
    /// under way.
    pub(crate) fn look_for_queues(&mut self) {
        if !self.is_walking() {
            self.walk();
        }
    }

    /// Returns whether all held entries of a queue are stored.
    #[must_use]
    pub(crate) fn is_stored(&self, queue: QueueHash) -> bool {
        !self.unstored.contains_key(&queue)
    }

    /// Returns how many walks over all names have begun.
    #[must_use]
    pub(crate) fn walks(&self) -> u64 {
        self.walks
    }

    /// Returns the round of a queue, see `topic_queues.rs`.
    pub(crate) fn round(&mut self, queue: QueueHash) -> Option<&mut u32> {
        match self.resting.get_mut(&queue) {
            Some(resting) => Some(&mut resting.round),
            None => self.active.get_mut(&queue).map(|active| &mut active.round),
        }
    }

    /// Begins to walk over the names of queues for a single one, unless a walk is under way.
    pub(crate) fn search(&mut self) {
        if !self.walk.is_going {
            self.walk = Walk { is_going: true, is_search: true, ..Walk::default() };
        }
    }

    /// Ends a walk that was only a search. If a queue was released meanwhile, a whole walk follows.
    pub(crate) fn end_search(&mut self) {
        if self.walk.is_search {
            self.end_walk(self.walk.again);
        }
    }

    /// Returns where to continue reading queue names: after this queue, or from the start if the
    /// inner option is `None`. Returns `None` if no more names are needed.
    #[must_use]
    pub(crate) fn wanted_names(&self) -> Option<Option<QueueName>> {
        (self.walk.is_going && self.ready.len() < READY_MAX / 2).then(|| self.walk.after.clone())
    }

    /// Records that names were read up to `last`, or to the end. Those that are released join the
    /// ready ones.
    pub(crate) fn walked(&mut self, last: Option<QueueName>, exhausted: bool) {
        if exhausted || last.is_none() {
            let again = self.walk.again || self.settle_owed();
            self.end_walk(again);
        } else {
            self.walk.after = last;
        }
    }

    fn end_walk(&mut self, again: bool) {
        self.walk = Walk::default();
        if again {
            self.begin_walk();
        }
    }

    /// Records that a walk has found a queue.
    pub(crate) fn found(&mut self, queue: QueueHash) {
        if let Some(resting) = self.resting.get_mut(&queue) {
            resting.is_owed = false;
        }
    }

    /// Returns whether a walk over all names is going.
    #[must_use]
    pub(crate) fn is_walking(&self) -> bool {
        self.walk.is_going && !self.walk.is_search
    }

    /// Ends a walk: released queues that it has not found have nothing stored. Returns whether
    /// another walk is needed.
    fn settle_owed(&mut self) -> bool {
        let Self { resting, unstored, recheck, .. } = self;
        let mut again = false;
        resting.retain(|queue, resting| {
            if !resting.is_owed {
                return true;
            }
            if unstored.contains_key(queue) {
                recheck.insert(*queue);
                resting.is_owed = false;
                return true;
            }
            again |= resting.is_touched;
            std::mem::take(&mut resting.is_touched)
        });
        again
    }

    /// Returns the pages to request now. `may_leave` returns, for a queue and the id of its first
    /// entry, whether that entry can be published; `has_enough`, whether enough entries of a queue
    /// are in the window.
    pub(crate) fn asks(
        &mut self,
        may_leave: impl Fn(QueueHash, EntryId) -> bool,
        has_enough: impl Fn(&QueueName) -> bool,
    ) -> Vec<HeldAsk> {
        let put_off = self.make_places(&has_enough);
        while self.active.len() < ACTIVE_MAX
            && let Some(Ready { name, share }) = self.ready.pop_front()
        {
            let queue = QueueHash::of_name(&name);
            self.queued.remove(&queue);
            let Some(Resting { from, round, .. }) = self.resting.get(&queue).copied() else { continue };
            if may_leave(queue, from) {
                self.resting.remove(&queue);
                let (asked, missed, waiting) = (None, BTreeSet::new(), Vec::new());
                let from = Some(from);
                let active = Active { name, from, asked, missed, is_closing: false, waiting, share, round };
                self.active.insert(queue, active);
            }
        }
        for Ready { name, share } in put_off {
            self.release_share(name, share);
        }
        let unstored = &self.unstored;
        let mut asks = Vec::new();
        let behind = self.read_last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut turn: Vec<QueueHash> =
            self.active.range((behind, Bound::Unbounded)).map(|(queue, _)| *queue).collect();
        if let Some(last) = self.read_last {
            turn.extend(self.active.range(..=last).map(|(queue, _)| *queue));
        }
        for queue in turn {
            let Some(active) = self.active.get_mut(&queue) else { continue };
            let waits = active.waits_for_store(unstored.get(&queue)) || has_enough(&active.name);
            if let (Some(from), None, false) = (active.from, active.asked, waits) {
                active.asked = Some(from);
                active.missed.clear();
                asks.push(HeldAsk { queue: active.name.clone(), from });
            }
        }
        asks
    }

    /// Stops reading queues that have enough in the window, if ready ones need their places.
    /// Returns them, to be released behind those.
    fn make_places(&mut self, has_enough: impl Fn(&QueueName) -> bool) -> Vec<Ready> {
        let needed = (self.active.len() + self.ready.len()).saturating_sub(ACTIVE_MAX);
        if self.ready.is_empty() || needed == 0 {
            return Vec::new();
        }
        // Entries of the log wait for those that are closing.
        let may_rest = |(_, active): &(&QueueHash, &Active)| {
            active.asked.is_none() && !active.is_closing && has_enough(&active.name)
        };
        let rested = self.active.iter().filter(may_rest).take(needed);
        let rested: Vec<_> = rested
            .map(|(queue, active)| (*queue, Ready { name: active.name.clone(), share: active.share }))
            .collect();
        rested.iter().for_each(|(queue, _)| self.rest(*queue));
        rested.into_iter().map(|(_, ready)| ready).collect()
    }

    /// Returns the names of the queues that are being read back.
    pub(crate) fn active(&self) -> impl Iterator<Item = (QueueHash, &QueueName)> {
        self.active.iter().map(|(queue, active)| (*queue, &active.name))
    }

    /// Returns the maximum entries to read of a queue, if its topic is busy.
    #[must_use]
    pub(crate) fn share(&self, queue: QueueHash) -> Option<usize> {
        self.active.get(&queue)?.share
    }

    /// Returns whether there is anything to ask for.
    #[must_use]
    pub(crate) fn wants_asks(&self) -> bool {
        let is_askable = |(queue, active): (&QueueHash, &Active)| {
            active.asked.is_none() && !active.waits_for_store(self.unstored.get(queue))
        };
        (self.active.len() < ACTIVE_MAX && !self.ready.is_empty()) || self.active.iter().any(is_askable)
    }

    /// Returns whether any queue only waits for a checkpoint.
    #[must_use]
    pub(crate) fn wants_store(&self) -> bool {
        self.active.iter().any(|(queue, active)| active.waits_for_store(self.unstored.get(queue)))
    }

    /// Records that an answer has come. Returns whether it counts: it does if no entry before the
    /// id of its query was held in the meantime.
    pub(crate) fn answered(&mut self, queue: QueueHash, asked_from: EntryId) -> bool {
        let Some(active) = self.active.get_mut(&queue) else { return false };
        if active.asked != Some(asked_from) {
            return false;
        }
        active.asked = None;
        active.from == Some(asked_from)
    }

    /// Records how far a valid answer has been processed.
    pub(crate) fn read(&mut self, queue: QueueHash, read: Read) {
        let next = match read {
            Read::UpTo(last) => Some(EntryId(last.0.saturating_add(1))),
            Read::StoppedAt(id) | Read::Unstored(id) => Some(id),
            Read::All => None,
        };
        let unstored = self.unstored.get(&queue).and_then(|ids| ids.first().copied());
        // If the queue is no longer active, one of its entries got stuck while the answer was taken
        // in.
        let Some(active) = self.active.get_mut(&queue) else { return };
        let missed = std::mem::take(&mut active.missed).first().copied();
        let had_room = !matches!((read, active.from), (Read::UpTo(last), Some(from)) if last < from);
        active.from = [next, unstored, missed].into_iter().flatten().min();
        if !had_room {
            return;
        }
        self.read_last = Some(queue);
        active.is_closing |= matches!(read, Read::All);
        if matches!(read, Read::UpTo(_)) {
            // Its topic is no longer busy.
            active.share = None;
        }
        match read {
            // This entry is the first: an unstored entry before it would have ended the answer
            // sooner.
            Read::StoppedAt(_) => self.rest(queue),
            Read::UpTo(_) if !active.is_closing && !self.ready.is_empty() => {
                // Queues take turns, one page each.
                let name = active.name.clone();
                self.rest(queue);
                self.release(name);
            }
            _ if active.from.is_none() => self.end(queue),
            _ => {}
        }
    }

    /// Ends a queue that has nothing left to read.
    fn end(&mut self, queue: QueueHash) {
        if let Some(active) = self.active.remove(&queue) {
            self.freed.extend(active.waiting);
        }
    }

    /// Stops reading the queue.
    pub(crate) fn rest(&mut self, queue: QueueHash) {
        let Some(active) = self.active.remove(&queue) else { return };
        self.requeue |= !active.waiting.is_empty();
        if let Some(from) = active.from {
            let resting = Resting { from, is_owed: false, is_touched: true, round: active.round };
            self.resting.insert(queue, resting);
        }
    }

    /// Records that an entry of the log waits in the window for a closing queue.
    pub(crate) fn wait(&mut self, queue: QueueHash, ticket: Ticket) {
        if let Some(active) = self.active.get_mut(&queue) {
            active.waiting.push(ticket);
        }
    }

    /// Holds the entries that wait in the window for queues that cannot be read because there is no
    /// room. Returns whether there were any.
    pub(crate) fn give_way(&mut self) -> bool {
        let waiting = |(queue, active): (&QueueHash, &Active)| {
            (!active.waiting.is_empty()).then(|| (*queue, active.name.clone()))
        };
        let all: Vec<_> = self.active.iter().filter_map(waiting).collect();
        for (queue, name) in &all {
            self.rest(*queue);
            self.recheck(*queue);
            self.release(name.clone());
        }
        !all.is_empty()
    }

    /// Returns whether a queue is being read, or is about to be.
    pub(crate) fn is_read(&self, name: &QueueName) -> bool {
        let queue = QueueHash::of_name(name);
        self.active.contains_key(&queue) || self.queued.contains(&queue)
    }

    /// Ends the wait of entries for the queue: they are held, and the queue is read again later.
    pub(crate) fn stop(&mut self, queue: QueueHash) {
        let waited_for = self.active.get(&queue).filter(|active| !active.waiting.is_empty());
        let Some(name) = waited_for.map(|active| active.name.clone()) else { return };
        self.rest(queue);
        self.recheck(queue);
        self.release(name);
    }

    /// Returns the resting queues that stay blocked until the obstacle to their first entry
    /// disappears.
    #[cfg(test)]
    pub(crate) fn idle(&self) -> Vec<(QueueHash, EntryId)> {
        let is_due = |queue| self.recheck.contains(queue) && self.unstored.contains_key(queue);
        let idle = self.resting.iter().filter(|(queue, _)| !self.queued.contains(queue) && !is_due(queue));
        idle.filter(|_| !self.walk.is_going).map(|(queue, resting)| (*queue, resting.from)).collect()
    }

    /// Returns whether entries that waited must be checked again.
    pub(crate) fn take_requeue(&mut self) -> bool {
        std::mem::take(&mut self.requeue)
    }

    /// Takes the entries that waited and may be published now, in the order of the log.
    pub(crate) fn take_freed(&mut self) -> Vec<Ticket> {
        std::mem::take(&mut self.freed)
    }
}
