//! The work of a process that believes to lead.

use super::state::{Leader, Mark, PRODUCERS, Process};
use super::{Breakage, Transactions};
use crate::sets::{Entry, Set};

impl Leader {
    /// With a lease, and nothing else.
    pub(super) fn granted(epoch: u8) -> Self {
        Self {
            epoch,
            sessions: [None; PRODUCERS],
            has_taken_over: false,
            turn: 0,
            closed: None,
            committed: Mark::default(),
            is_stored: true,
            left: Set::default(),
            parked: Set::default(),
            is_dirty: false,
        }
    }

    /// The producer of which the session before is not shut out yet.
    pub(super) fn next_to_shut_out(&self) -> Option<usize> {
        self.sessions.iter().position(Option::is_none)
    }

    /// Goes on from a checkpoint that both have.
    pub(super) fn begin(&mut self, checkpoint: Mark) {
        (self.has_taken_over, self.closed) = (true, None);
        let behind = (0..checkpoint.cursor).fold(Set::default(), Set::with).without(checkpoint.parked);
        self.left = behind.and(checkpoint.settled);
        self.parked = checkpoint.parked;
        self.committed = checkpoint;
    }

    /// Whether the entry may be sent now: those before it in its key have left, and it has not.
    pub(super) fn may_send(&self, model: &Transactions, entry: Entry) -> bool {
        let is_next = (0..entry).all(|other| model.key(other) != model.key(entry) || self.left.has(other));
        !self.left.has(entry) && is_next
    }

    /// Whether the entry may be parked: it is refused, or another one of its key is parked before
    /// it.
    pub(super) fn may_park(&self, model: &Transactions, entry: Entry) -> bool {
        let is_held = (0..entry).any(|other| model.key(other) == model.key(entry) && self.parked.has(other));
        let is_seen = (0..entry).all(|other| self.left.has(other) || self.parked.has(other));
        is_seen
            && !self.left.has(entry)
            && !self.parked.has(entry)
            && (is_held || (model.refused == Some(entry) && self.may_send(model, entry)))
    }

    /// The next checkpoint.
    pub(super) fn checkpoint(&self, model: &Transactions) -> Mark {
        let is_behind = |entry: &Entry| self.left.has(*entry) || self.parked.has(*entry);
        let cursor = model.entries().take_while(is_behind).count() as Entry;
        let ahead = (cursor..8).filter(|entry| self.left.has(*entry)).fold(Set::default(), Set::with);
        let settled = if model.breakage == Breakage::SettledForgotten { Set::default() } else { ahead };
        Mark { number: self.committed.number + 1, cursor, parked: self.parked, settled }
    }

    /// Whether something is to be committed, nothing before it is still to be, and the checkpoint
    /// before it is in the database.
    pub(super) fn may_close(&self) -> bool {
        let is_changed = self.is_dirty || self.parked != self.committed.parked;
        self.closed.is_none() && is_changed && (self.is_stored || self.committed.number == 0)
    }
}

impl Process {
    /// The leader in it, if it believes to be one.
    pub(super) fn leader(&mut self) -> Option<&mut Leader> {
        match self {
            Self::Leading(leader) => Some(leader),
            _ => None,
        }
    }
}
