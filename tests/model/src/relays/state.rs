//! The state of the model.

use crate::sets::{Cursor, Entry, Read, Set};

/// A producer's transaction with one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transaction {
    /// Not begun: the entry has no id yet.
    Unborn,
    /// The id is taken, the row is not visible.
    Open,
    /// The row is visible.
    Committed,
    /// The row will never be visible.
    RolledBack,
}

/// The lease in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Lease {
    /// The last epoch granted; 0 before the first.
    pub epoch: u8,
    /// Whether it may be granted again.
    pub is_free: bool,
}

/// One relay process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Relay {
    /// It does not publish.
    Standby,
    /// It believes that it leads, rightly or wrongly.
    Leading(Leader),
}

/// The memory of a leading relay.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leader {
    /// The epoch of its lease.
    pub epoch: u8,
    /// The cursor that it loaded or stored last.
    pub stored: Cursor,
    /// The entries that it has read since then, in order.
    pub run: Vec<Read>,
    /// Places in the run whose messages were sent in this session.
    pub sent: Set,
    /// Places whose messages the broker has.
    pub arrived: Set,
    /// Places whose messages are confirmed, as far as the relay knows.
    pub confirmed: Set,
    /// Places whose messages may be lost with an earlier session.
    pub lost: Set,
}

/// The whole state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The transaction of each entry.
    pub transactions: Vec<Transaction>,
    /// For each entry, the earlier ones of its key that had committed when it was enqueued.
    pub before: Vec<Set>,
    /// The lease in the database.
    pub lease: Lease,
    /// The cursor in the database.
    pub cursor: Cursor,
    /// The two relay processes.
    pub relays: [Relay; 2],
    /// For each process, messages that may still arrive over a connection that it has abandoned.
    pub stragglers: [Vec<Entry>; 2],
    /// The entries that the broker accepted, in its order.
    pub log: Vec<Entry>,
    /// The number of deliveries that the consumer has acknowledged.
    pub acknowledged: usize,
    /// Ids in the consumer's inbox.
    pub inbox: Set,
    /// Number of effects of each entry.
    pub effects: Vec<u8>,
    /// A delivery that was acknowledged before its commit. Only with the breakage.
    pub acked_early: Option<Entry>,
    /// Crashes, lost sessions and lost acknowledgements so far.
    pub faults: u8,
    /// Whether a relay published with a stale epoch.
    pub zombie_published: bool,
    /// Whether a checkpoint with a stale epoch changed the cursor.
    pub stale_checkpoint: bool,
}

impl State {
    /// Returns the state before anything has happened.
    #[must_use]
    pub fn new(entries: usize) -> Self {
        Self {
            transactions: vec![Transaction::Unborn; entries],
            before: vec![Set::default(); entries],
            lease: Lease { epoch: 0, is_free: true },
            cursor: Cursor::default(),
            relays: [Relay::Standby, Relay::Standby],
            stragglers: [Vec::new(), Vec::new()],
            log: Vec::new(),
            acknowledged: 0,
            inbox: Set::default(),
            effects: vec![0; entries],
            acked_early: None,
            faults: 0,
            zombie_published: false,
            stale_checkpoint: false,
        }
    }

    /// Returns the entries that a snapshot taken now shows.
    #[must_use]
    pub fn visible(&self) -> Set {
        let is_committed = |(_, transaction): &(usize, &Transaction)| **transaction == Transaction::Committed;
        let committed = self.transactions.iter().enumerate().filter(is_committed);
        committed.fold(Set::default(), |set, (entry, _)| set.with(entry as Entry))
    }

    /// Returns the entries that the broker holds.
    #[must_use]
    pub fn published(&self) -> Set {
        self.log.iter().fold(Set::default(), |set, entry| set.with(*entry))
    }
}
