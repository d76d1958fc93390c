//! A relay that publishes in transactions of the broker: two processes, their lease, the database,
//! the broker's coordinator, its log, and the marks.
//!
//! | file | what it holds |
//! |---|---|
//! | `state.rs` | what there is |
//! | `action.rs` | what can happen next |
//! | `leader.rs` | what a process does that believes to lead |
//! | `promise.rs` | what must hold, and what must be reachable |
//! | `breakage.rs` | rules that can be left out |
//!
//! A relay has two producers: while the transaction of one is committed, the other is filled.
//!
//! Entries are all in the log from the beginning: how they come there is in
//! [`relays`](crate::relays). The broker refuses one of them the first time, so it is parked with
//! what follows it in its key, and leaves later from there.
//!
//! Harsher than the code: a lease may be over at any moment, and a process that has lost it goes on
//! for as long as it likes. Only the coordinator stops it. The database may be set back, when every
//! process has ended, to what it held at any earlier checkpoint.

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
    /// The ordering key of each entry, in the order of ids. At most eight.
    pub keys: Vec<u8>,
    /// The entry that the broker refuses the first time.
    pub refused: Option<Entry>,
    /// How often the lease is granted.
    pub epochs_max: u8,
    /// How many crashes and lost answers there are.
    pub faults_max: u8,
    /// How often the database is set back.
    pub restores_max: u8,
    /// The rule that is left out.
    pub breakage: Breakage,
}

impl Transactions {
    /// Bounds that explore within seconds.
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

    /// Bounds that explore within minutes.
    #[must_use]
    pub fn large() -> Self {
        Self { keys: vec![0, 1, 0, 1], epochs_max: 4, faults_max: 2, ..Self::small() }
    }

    /// Small bounds with a rule left out.
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
