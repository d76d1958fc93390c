//! The state of the model.

use crate::sets::{Entry, Set};

/// The work of a worker at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    /// Nothing.
    Idle,
    /// A delivery, by its place in the log.
    Received(usize),
    /// It has inserted the inbox row and applied the effect; neither is committed.
    Applied(usize),
    /// Only with the breakage: the inbox row is committed, the effect is not.
    Remembered(usize),
    /// The transaction has committed, or found a duplicate, or the message is dead-lettered: it may
    /// acknowledge.
    Settled(usize),
}

/// The content of one consumer's database.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Inbox {
    /// Committed inbox rows.
    pub rows: Set,
    /// How often each message took effect.
    pub effects: Vec<u8>,
    /// Messages that were refused.
    pub dead: Set,
    /// Places of the log that are acknowledged.
    pub acknowledged: Set,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The messages that the broker hands out, in its order.
    pub log: Vec<Entry>,
    /// One for each consumer's name.
    pub inboxes: Vec<Inbox>,
    /// One for each worker.
    pub workers: Vec<Work>,
    /// Messages below are too old: their inbox rows are gone.
    pub horizon: Entry,
    /// Crashes and commits of unknown outcome so far.
    pub faults: u8,
    /// Whether a copy was recognised.
    pub suppressed: bool,
}

impl State {
    /// The message of a place.
    #[must_use]
    pub fn entry(&self, place: usize) -> Entry {
        self.log[place]
    }
}
