//! The state of the model.

use crate::sets::{Entry, Set};

/// A checkpoint: what the engine knows of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mark {
    /// Its transaction; 0 before the first.
    pub number: u8,
    /// Everything below has left or is parked.
    pub cursor: Entry,
    /// The entries that are parked.
    pub parked: Set,
    /// Entries that have left ahead of the cursor. The database does not hold it.
    pub settled: Set,
}

/// The database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Database {
    /// Of the last lease.
    pub epoch: u8,
    /// Whether nobody has the lease, or it is over.
    pub is_free: bool,
    /// The last checkpoint, without what is settled ahead of it.
    pub checkpoint: Mark,
}

/// How many producers a relay has; they take turns.
pub const PRODUCERS: usize = 2;

/// The broker.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Broker {
    /// Of each producer the session that may commit: the last that was begun.
    pub sessions: [u8; PRODUCERS],
    /// The messages of transactions that are not committed.
    pub open: [Vec<Entry>; PRODUCERS],
    /// Everything that readers of committed records see.
    pub log: Vec<Entry>,
    /// The last mark that was committed.
    pub mark: Option<Mark>,
}

/// A transaction to which nothing is added any more, and which is not committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Closed {
    /// Where its messages are.
    pub producer: usize,
    /// The mark that is committed with it.
    pub mark: Mark,
}

/// A process that believes to lead.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leader {
    /// The epoch of its lease.
    pub epoch: u8,
    /// Its session with each producer, once it has shut the one before out.
    pub sessions: [Option<u8>; PRODUCERS],
    /// Whether it has compared the last mark with the database.
    pub has_taken_over: bool,
    /// The producer of the next transaction.
    pub turn: usize,
    /// The transaction before it.
    pub closed: Option<Closed>,
    /// The last checkpoint that it knows to be committed.
    pub committed: Mark,
    /// Whether that one is in the database.
    pub is_stored: bool,
    /// Entries that have left, as far as it knows, with what is confirmed in the open transaction.
    pub left: Set,
    /// The entries that are parked.
    pub parked: Set,
    /// Whether messages were confirmed since a transaction was closed.
    pub is_dirty: bool,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Process {
    /// It waits for the lease.
    Standby,
    /// It leads, or believes so.
    Leading(Leader),
    /// It has stopped and told its operator why.
    Stopped,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The database.
    pub database: Database,
    /// Earlier checkpoints, of which a restore brings one back.
    pub backups: Vec<Mark>,
    /// The broker.
    pub broker: Broker,
    /// The processes.
    pub processes: [Process; 2],
    /// Crashes and lost answers so far.
    pub faults: u8,
    /// Restores so far.
    pub restores: u8,
    /// A session that was shut out tried to commit.
    pub has_fenced: bool,
    /// A mark that the database did not have was brought to it.
    pub has_brought: bool,
    /// A commit happened whose answer nobody heard.
    pub has_unheard: bool,
    /// A new leader passed an entry that had left ahead of the cursor.
    pub has_passed: bool,
    /// A parked entry has left.
    pub has_requeued: bool,
}
