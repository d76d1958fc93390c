//! The state of the model.

use crate::sets::{Entry, Set};

/// Maximum number of messages.
pub const MESSAGES_MAX: usize = 8;

/// The data of a server, which a replica copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Database {
    /// The last id that was drawn.
    pub counter: u8,
    /// The id of each message that has a row; zero for the others.
    pub ids: [u8; MESSAGES_MAX],
    /// The messages that have committed, even if retention has deleted their rows.
    pub committed: Set,
    /// The messages with a pending row.
    pub pending: Set,
    /// The epoch of the last lease.
    pub epoch: u8,
}

impl Database {
    /// Returns the highest id of a row.
    pub(super) fn highest(&self) -> u8 {
        self.ids.into_iter().max().unwrap_or_default()
    }
}

/// A transaction of a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Writer {
    /// This many of its messages have drawn an id. Any time can pass until it commits.
    Open(u8),
    /// It has committed; its pending rows are still to be written. Only with a breakage.
    Unnoted,
    /// It has committed, or was rolled back.
    Ended,
}

/// The memory of a process that believes that it leads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leader {
    /// The epoch of its lease.
    pub epoch: u8,
    /// The run of the server to which its session belongs.
    pub run: u8,
    /// The transactions that were open when the current look began.
    pub look: Option<Set>,
    /// The highest id that the look before showed. Zero where no rule needs it.
    pub highest: u8,
    /// The messages that it has read, and whose pending rows it has not deleted.
    pub known: Set,
    /// The id of each of them; zero for the others.
    pub ids: [u8; MESSAGES_MAX],
    /// Those that it has sent.
    pub sent: Set,
    /// Those whose confirmation it has got.
    pub confirmed: Set,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Process {
    /// It waits for the lease.
    Standby,
    /// It leads, or believes that it does.
    Leading(Leader),
}

impl Process {
    /// Returns the leader, if the process believes that it leads.
    pub(super) fn leader(&mut self) -> Option<&mut Leader> {
        match self {
            Self::Leading(leader) => Some(leader),
            Self::Standby => None,
        }
    }
}

/// The whole state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The server.
    pub database: Database,
    /// The data that its replica will have when it becomes the server, once that is decided.
    pub replica: Option<Database>,
    /// Number of restarts and failovers: each breaks every session.
    pub run: u8,
    /// The transactions of the producers.
    pub writers: Vec<Writer>,
    /// The id of each message whose transaction is open.
    pub drawn: [u8; MESSAGES_MAX],
    /// The highest id that was ever drawn.
    pub highest_drawn: u8,
    /// For each message, those of its key that had committed before it drew its id, and that had
    /// not taken effect by then. They must take effect before it.
    pub before: [Set; MESSAGES_MAX],
    /// Messages that are sent: each may arrive at any later time. Repetitions have no effect.
    pub network: Set,
    /// The messages that have taken effect.
    pub effects: Set,
    /// Whether a message has taken effect before an earlier one of its key.
    pub is_turned: bool,
    /// The processes.
    pub processes: [Process; 2],
    /// Failovers, lost answers and other faults so far.
    pub faults: u8,
    /// Whether a lower id was read after a higher one had been sent.
    pub has_come_late: bool,
    /// Whether a message was pending again that had taken effect.
    pub has_come_back: bool,
    /// Whether an id was drawn a second time.
    pub has_reused: bool,
    /// Whether a checkpoint was refused.
    pub has_fenced: bool,
    /// Whether a read view left out a committed transaction.
    pub has_left_out: bool,
}

impl State {
    /// A message arrives, and takes effect if it is the first time.
    pub(super) fn arrive(&mut self, message: Entry) {
        self.network = self.network.without(Set::default().with(message));
        // A message that a failover took away has no place in the order any more.
        let before = std::mem::take(&mut self.before[usize::from(message)]);
        let is_missing = |other: Entry| self.database.committed.has(other) && !self.effects.has(other);
        self.is_turned |= !self.effects.has(message) && before.iter().any(is_missing);
        self.effects = self.effects.with(message);
    }
}
