//! The work of a process that believes that it leads.

use super::state::{Leader, Mark, PRODUCERS, Process};
use super::{Breakage, Transactions};
use crate::sets::{Entry, Set};

impl Leader {
    /// Creates a leader that has a lease and nothing else yet.
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

    /// Returns the producer whose previous session is not fenced yet.
    pub(super) fn next_to_shut_out(&self) -> Option<usize> {
        self.sessions.iter().position(Option::is_none)
    }

    /// Continues from a checkpoint that both the broker and the database have.
    pub(super) fn begin(&mut self, checkpoint: Mark) {
        (self.has_taken_over, self.closed) = (true, None);
        let behind = (0..checkpoint.cursor).fold(Set::default(), Set::with).without(checkpoint.parked);
        self.left = behind.and(checkpoint.settled);
        self.parked = checkpoint.parked;
        self.committed = checkpoint;
    }

    /// Returns whether the entry may be sent now: the earlier ones of its key have been sent, and
    /// it has not.
    pub(super) fn may_send(&self, model: &Transactions, entry: Entry) -> bool {
        let is_next = (0..entry).all(|other| model.key(other) != model.key(entry) || self.left.has(other));
        !self.left.has(entry) && is_next
    }

    /// Returns whether the entry may be parked: it is refused, or an earlier one of its key is
    /// parked.
    pub(super) fn may_park(&self, model: &Transactions, entry: Entry) -> bool {
        let is_held = (0..entry).any(|other| model.key(other) == model.key(entry) && self.parked.has(other));
        let is_seen = (0..entry).all(|other| self.left.has(other) || self.parked.has(other));
        is_seen
            && !self.left.has(entry)
            && !self.parked.has(entry)
            && (is_held || (model.refused == Some(entry) && self.may_send(model, entry)))
    }

    /// Returns the next checkpoint.
    pub(super) fn checkpoint(&self, model: &Transactions) -> Mark {
        let is_behind = |entry: &Entry| self.left.has(*entry) || self.parked.has(*entry);
        let cursor = model.entries().take_while(is_behind).count() as Entry;
        let ahead = (cursor..8).filter(|entry| self.left.has(*entry)).fold(Set::default(), Set::with);
        let settled = if model.breakage == Breakage::SettledForgotten { Set::default() } else { ahead };
        Mark { number: self.committed.number + 1, cursor, parked: self.parked, settled }
    }

    /// Returns whether there is something to commit, no earlier transaction is open, and the
    /// previous checkpoint is in the database.
    pub(super) fn may_close(&self) -> bool {
        let is_changed = self.is_dirty || self.parked != self.committed.parked;
        self.closed.is_none() && is_changed && (self.is_stored || self.committed.number == 0)
    }
}

impl Process {
    /// Returns the leader, if the process believes that it leads.
    pub(super) fn leader(&mut self) -> Option<&mut Leader> {
        match self {
            Self::Leading(leader) => Some(leader),
            _ => None,
        }
    }
}
