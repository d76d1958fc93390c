//! Producers, two relays, their lease and cursor, the network, the broker, and a consumer with its
//! inbox.
//!
//! | file | what it holds |
//! |---|---|
//! | `state.rs` | what there is |
//! | `action.rs` | what can happen next, and what then is |
//! | `leader.rs` | what a relay does with its part of the log |
//! | `promise.rs` | what must hold in every state, and what must be reachable for the model to mean anything |
//! | `breakage.rs` | rules that can be left out |
//!
//! # The claim about zombies
//! Within the bounds of [`Relays`], in every reachable state: the first occurrences of causally
//! ordered entries of a key are in order in the broker, although any relay that ever led may go on
//! reading and publishing from what it remembers, and everything it ever sent may arrive late. The
//! reason, which the model confirms: every relay publishes contiguous runs of each key that begin
//! at or below the stored cursor, and the stored cursor only passes what the broker holds. So
//! whatever a zombie adds is a copy of something that is there, or is the next of its key.
//!
//! Not in the model: entries that are parked (the simulation has them), retention, and brokers
//! that reorder one session's messages of a key.

mod action;
mod breakage;
mod leader;
mod promise;
mod state;

pub use action::Action;
pub use breakage::Breakage;
pub use state::{Leader, Lease, Relay, State, Transaction};

use crate::sets::Entry;

/// The bounds of one exploration.
#[derive(Debug, Clone)]
pub struct Relays {
    /// The ordering key of each entry, in the order of ids. At most eight.
    pub keys: Vec<u8>,
    /// How often the lease is granted.
    pub epochs_max: u8,
    /// How many messages the broker takes, copies included.
    pub log_max: usize,
    /// How many crashes, lost sessions and unacknowledged deliveries there are.
    pub faults_max: u8,
    /// Whether a key's next message leaves before its last one is confirmed.
    pub is_pipelined: bool,
    /// The rule that is left out.
    pub breakage: Breakage,
}

impl Relays {
    /// Bounds that explore within seconds.
    #[must_use]
    pub fn small(is_pipelined: bool) -> Self {
        Self {
            keys: vec![0, 0],
            epochs_max: 2,
            log_max: 4,
            faults_max: 1,
            is_pipelined,
            breakage: Breakage::Nothing,
        }
    }

    /// Bounds that explore within minutes and a few gigabytes: more grants and faults for two
    /// entries, and a third entry, of another key or of the same.
    #[must_use]
    pub fn large(is_pipelined: bool) -> Vec<Self> {
        let small = Self::small(is_pipelined);
        vec![
            Self { epochs_max: 3, faults_max: 2, ..small.clone() },
            Self { keys: vec![0, 0, 0], faults_max: 0, ..small.clone() },
            Self { keys: vec![0, 1, 0], faults_max: 0, ..small },
        ]
    }

    /// The smallest bounds within which the absence of a rule shows.
    #[must_use]
    pub fn without(breakage: Breakage) -> Self {
        let mut model = Self { breakage, log_max: 3, ..Self::small(breakage == Breakage::RetryOvertakes) };
        // Only another key's message can be confirmed out of turn.
        if breakage == Breakage::CheckpointOverGaps {
            model.keys = vec![0, 1];
        }
        model
    }

    fn key(&self, entry: Entry) -> u8 {
        self.keys[usize::from(entry)]
    }
}
