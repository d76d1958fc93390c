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

/// A transaction that is not committed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Open {
    /// The session that opened it.
    pub session: u8,
    /// Its messages.
    pub entries: Vec<Entry>,
}

/// The broker.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Broker {
    /// The session that may commit: the last that was begun.
    pub session: u8,
    /// A transaction that is not committed.
    pub open: Option<Open>,
    /// Everything that readers of committed records see.
    pub log: Vec<Entry>,
    /// The last mark that was committed.
    pub mark: Option<Mark>,
}

/// A process that believes to lead.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leader {
    /// The epoch of its lease.
    pub epoch: u8,
    /// Its session, once it has shut the one before out.
    pub session: Option<u8>,
    /// The last checkpoint that it knows to be committed.
    pub committed: Mark,
    /// Whether that one is in the database.
    pub is_stored: bool,
    /// Entries that have left, as far as it knows, with what is confirmed in the open transaction.
    pub left: Set,
    /// The entries that are parked.
    pub parked: Set,
    /// Whether messages were confirmed since the last commit.
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
