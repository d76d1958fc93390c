//! The state of the model.

use crate::sets::{Entry, Set};

/// The current work of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    /// It does nothing.
    Idle,
    /// It has received the delivery at this place of the log.
    Received(usize),
    /// It has inserted the inbox row and applied the effect; neither is committed.
    Applied(usize),
    /// The inbox row is committed, the effect is not. Only with the breakage.
    Remembered(usize),
    /// The transaction has committed or found a duplicate, or the message is dead-lettered. The
    /// worker may acknowledge.
    Settled(usize),
}

/// The content of one consumer's database.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Inbox {
    /// Committed inbox rows.
    pub rows: Set,
    /// Number of effects of each message.
    pub effects: Vec<u8>,
    /// Messages that were dead-lettered.
    pub dead: Set,
    /// Places of the log that are acknowledged.
    pub acknowledged: Set,
}

/// The whole state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The messages that the broker hands out, in its order.
    pub log: Vec<Entry>,
    /// The inbox of each consumer.
    pub inboxes: Vec<Inbox>,
    /// The work of each worker.
    pub workers: Vec<Work>,
    /// Messages below this one have expired: their inbox rows were deleted.
    pub horizon: Entry,
    /// Crashes and commits of unknown outcome so far.
    pub faults: u8,
    /// Whether a copy was recognised.
    pub suppressed: bool,
}

impl State {
    /// Returns the message at a place of the log.
    #[must_use]
    pub fn entry(&self, place: usize) -> Entry {
        self.log[place]
    }
}
