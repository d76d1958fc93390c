//! The reader of a database that shows no snapshots, MariaDB and MySQL: producers, a server with a
//! replica, two relays, their lease, the rows that are pending, a broker, and the inbox.
//!
//! | file | what it holds |
//! |---|---|
//! | `state.rs` | the state |
//! | `action.rs` | the actions, and the states that follow |
//! | `producers.rs` | transactions of producers, retention, the server and its replica |
//! | `leader.rs` | the work of a process that believes that it leads |
//! | `promise.rs` | properties that must hold, and states that must be reachable |
//! | `breakage.rs` | rules that can be left out |
//!
//! A message has a *pending row*, written in its own transaction and deleted by the checkpoint
//! after its confirmation. No position is kept: each look reads the lowest pending ids in one
//! statement. So an id that was drawn early and committed late, an id that is never used, one that
//! is used again, and a server that goes back need no rule of their own.
//!
//! MariaDB takes a read view without a mutex ([MDEV-15104]): a view could leave out a transaction
//! that committed while it was taken, and show another one that began afterwards. `has_gaps` models
//! that. Two looks cure it: the second begins after the first has ended, so whatever could come
//! before a message of the first look is in the second.
//!
//! Harsher than the code: a lease may expire at any moment, a process that has lost it may go on
//! forever, and whatever it has sent may arrive at any later time. Messages that the broker refuses
//! are left out: [`relays`](crate::relays) has them, and they are parked in the same way.
//!
//! [MDEV-15104]: https://jira.mariadb.org/browse/MDEV-15104

mod action;
mod breakage;
mod leader;
mod producers;
mod promise;
mod state;

pub use action::Action;
pub use breakage::Breakage;
pub use state::{Database, Leader, MESSAGES_MAX, Process, State, Writer};

use crate::sets::{Entry, Set};

/// The bounds of one exploration.
#[derive(Debug, Clone)]
pub struct Pending {
    /// The ordering key of each message. Maximum eight messages.
    pub keys: Vec<u8>,
    /// Number of messages of each transaction.
    pub transactions: Vec<u8>,
    /// Maximum number of rows of a look.
    pub page: usize,
    /// Whether read views can leave out a transaction that commits while they are taken.
    pub has_gaps: bool,
    /// Maximum number of grants of the lease.
    pub epochs_max: u8,
    /// Maximum number of faults.
    pub faults_max: u8,
    /// The rule that is left out.
    pub breakage: Breakage,
}

impl Pending {
    /// Returns bounds that are explored within seconds: three messages that one relay reads.
    #[must_use]
    pub fn order(has_gaps: bool) -> Self {
        Self {
            keys: vec![0, 1, 0],
            transactions: vec![1, 1, 1],
            page: 2,
            has_gaps,
            epochs_max: 1,
            faults_max: 0,
            breakage: Breakage::Nothing,
        }
    }

    /// Returns bounds that are explored within seconds: two messages, two relays, and a fault.
    #[must_use]
    pub fn faults() -> Self {
        Self {
            keys: vec![0, 0],
            transactions: vec![1, 1],
            page: 1,
            epochs_max: 2,
            faults_max: 1,
            ..Self::order(false)
        }
    }

    /// Returns what is explored within seconds.
    #[must_use]
    pub fn small() -> Vec<Self> {
        vec![Self::order(false), Self::order(true), Self::faults()]
    }

    /// Returns bounds that are explored within minutes: a transaction of two messages, and faults
    /// among three messages.
    #[must_use]
    pub fn large() -> Vec<Self> {
        let two_at_once =
            |has_gaps| Self { keys: vec![0, 1, 0, 0], transactions: vec![2, 1, 1], ..Self::order(has_gaps) };
        vec![
            two_at_once(false),
            two_at_once(true),
            Self { faults_max: 2, ..Self::faults() },
            Self { has_gaps: true, ..Self::faults() },
            Self { epochs_max: 2, faults_max: 1, ..Self::order(false) },
        ]
    }

    /// Returns small bounds with a rule left out.
    #[must_use]
    pub fn without(breakage: Breakage) -> Self {
        let bounds = match breakage {
            Breakage::OneLook => Self::order(true),
            Breakage::LookGoesOn | Breakage::AnyOrder | Breakage::NotOneByOne => Self::order(false),
            _ => Self::faults(),
        };
        Self { breakage, ..bounds }
    }

    fn key(&self, message: Entry) -> u8 {
        self.keys[usize::from(message)]
    }

    /// Returns the messages of a transaction, in the order in which they draw their ids.
    fn messages(&self, transaction: usize) -> std::ops::Range<Entry> {
        let first: u8 = self.transactions[..transaction].iter().sum();
        first..first + self.transactions[transaction]
    }

    /// Returns the messages of a transaction in a set.
    fn of(&self, transaction: usize) -> Set {
        self.messages(transaction).fold(Set::default(), Set::with)
    }
}
