//! The state of the model.

use crate::sets::{Entry, Set};

/// A checkpoint: the engine's knowledge of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mark {
    /// The number of its transaction; 0 before the first.
    pub number: u8,
    /// Every entry below this one is published or parked.
    pub cursor: Entry,
    /// The entries that are parked.
    pub parked: Set,
    /// Entries that were published ahead of the cursor. The database does not store them.
    pub settled: Set,
}

/// The database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Database {
    /// The epoch of the last lease.
    pub epoch: u8,
    /// Whether there is no holder, or the lease has expired.
    pub is_free: bool,
    /// The last checkpoint, without the entries that are settled ahead of its cursor.
    pub checkpoint: Mark,
}

/// Number of producers of a relay; they take turns.
pub const PRODUCERS: usize = 2;

/// The broker.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Broker {
    /// The session of each producer that may commit: the last one that was begun.
    pub sessions: [u8; PRODUCERS],
    /// The messages of uncommitted transactions.
    pub open: [Vec<Entry>; PRODUCERS],
    /// Everything that a reader of committed records sees.
    pub log: Vec<Entry>,
    /// The last mark that was committed.
    pub mark: Option<Mark>,
}

/// A transaction that gets no more messages and is not committed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Closed {
    /// The producer with its messages.
    pub producer: usize,
    /// The mark that is committed with it.
    pub mark: Mark,
}

/// The memory of a process that believes that it leads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leader {
    /// The epoch of its lease.
    pub epoch: u8,
    /// Its session for each producer, once it has fenced the previous session.
    pub sessions: [Option<u8>; PRODUCERS],
    /// Whether it has compared the last mark with the database.
    pub has_taken_over: bool,
    /// The producer of the next transaction.
    pub turn: usize,
    /// The closed transaction before it.
    pub closed: Option<Closed>,
    /// The last checkpoint that it knows to be committed.
    pub committed: Mark,
    /// Whether that checkpoint is in the database.
    pub is_stored: bool,
    /// Published entries, according to its knowledge, including those confirmed in the open
    /// transaction.
    pub left: Set,
    /// The entries that are parked.
    pub parked: Set,
    /// Whether messages were confirmed since the last transaction was closed.
    pub is_dirty: bool,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Process {
    /// It waits for the lease.
    Standby,
    /// It leads, or believes that it does.
    Leading(Leader),
    /// It has stopped and reported the reason to its operator.
    Stopped,
}

/// The whole state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The database.
    pub database: Database,
    /// Earlier checkpoints to which a restore may go back.
    pub backups: Vec<Mark>,
    /// The broker.
    pub broker: Broker,
    /// The processes.
    pub processes: [Process; 2],
    /// Crashes and lost answers so far.
    pub faults: u8,
    /// Restores so far.
    pub restores: u8,
    /// Whether a fenced session tried to write.
    pub has_fenced: bool,
    /// Whether the database got a mark that it lacked.
    pub has_brought: bool,
    /// Whether a commit happened without an answer.
    pub has_unheard: bool,
    /// Whether a new leader passed an entry that was published ahead of the cursor.
    pub has_passed: bool,
    /// Whether a parked entry was published.
    pub has_requeued: bool,
}
