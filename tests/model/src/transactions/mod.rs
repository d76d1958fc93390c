//! A relay that publishes in transactions of the broker: two processes, their lease, the database,
//! the broker's coordinator, its log, and the marks.
//!
//! | file | what it holds |
//! |---|---|
//! | `state.rs` | the state |
//! | `action.rs` | the actions, and the states that follow |
//! | `leader.rs` | the work of a process that believes that it leads |
//! | `promise.rs` | properties that must hold, and states that must be reachable |
//! | `breakage.rs` | rules that can be left out |
//!
//! A relay has two producers: while the transaction of one is committed, the other one is filled.
//!
//! All entries are in the log from the beginning; [`relays`](crate::relays) models how they get
//! there. The broker refuses one of them the first time, so it is parked with the later ones of its
//! key, and leaves from there afterwards.
//!
//! Harsher than the code: a lease may expire at any moment, and a process that has lost it may go
//! on forever. Only the coordinator stops it. When every process has ended, the database may go
//! back to any earlier checkpoint.

mod action;
mod breakage;
mod leader;
mod promise;
mod state;

pub use action::Action;
pub use breakage::Breakage;
pub use state::{Broker, Closed, Database, Leader, Mark, PRODUCERS, Process, State};

use crate::sets::Entry;

/// The bounds of one exploration.
#[derive(Debug, Clone)]
pub struct Transactions {
    /// The ordering key of each entry, in the order of ids. Maximum eight entries.
    pub keys: Vec<u8>,
    /// The entry that the broker refuses the first time.
    pub refused: Option<Entry>,
    /// Maximum number of grants of the lease.
    pub epochs_max: u8,
    /// Maximum number of crashes and lost answers.
    pub faults_max: u8,
    /// Maximum number of times that the database goes back.
    pub restores_max: u8,
    /// The rule that is left out.
    pub breakage: Breakage,
}

impl Transactions {
    /// Returns bounds that are explored within seconds.
    #[must_use]
    pub fn small() -> Self {
        Self {
            keys: vec![0, 1, 0],
            refused: Some(0),
            epochs_max: 3,
            faults_max: 1,
            restores_max: 1,
            breakage: Breakage::Nothing,
        }
    }

    /// Returns bounds that are explored within minutes.
    #[must_use]
    pub fn large() -> Self {
        Self { keys: vec![0, 1, 0, 1], epochs_max: 4, faults_max: 2, ..Self::small() }
    }

    /// Returns small bounds with a rule left out.
    #[must_use]
    pub fn without(breakage: Breakage) -> Self {
        Self { breakage, ..Self::small() }
    }

    fn key(&self, entry: Entry) -> u8 {
        self.keys[usize::from(entry)]
    }

    fn entries(&self) -> std::ops::Range<Entry> {
        0..self.keys.len() as Entry
    }
}
