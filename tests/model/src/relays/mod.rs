//! Producers, two relays, their lease and cursor, the network, the broker, and a consumer with its
//! inbox.
//!
//! | file | what it holds |
//! |---|---|
//! | `state.rs` | the state |
//! | `action.rs` | the actions, and the states that follow |
//! | `leader.rs` | the work of a leading relay |
//! | `promise.rs` | properties that must hold, and states that must be reachable |
//! | `breakage.rs` | rules that can be left out |
//!
//! # The claim about zombies
//! Within the bounds of [`Relays`] it holds in every reachable state: the first occurrences of
//! causally ordered entries of a key are in order in the broker. Yet any relay that ever led may
//! continue to read and publish from its memory, and everything it ever sent may arrive late. The
//! model confirms the reason: every relay publishes contiguous runs of each key that begin at or
//! below the stored cursor, and the stored cursor passes only what the broker holds. So anything
//! that a zombie adds is a copy of a stored message, or the next one of its key.
//!
//! Not in the model: parked entries (the simulation has them), retention, and brokers that reorder
//! messages of a key within one session.

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
    /// The ordering key of each entry, in the order of ids. Maximum eight entries.
    pub keys: Vec<u8>,
    /// Maximum number of grants of the lease.
    pub epochs_max: u8,
    /// Maximum number of messages that the broker accepts, copies included.
    pub log_max: usize,
    /// Maximum number of crashes, lost sessions and unacknowledged deliveries.
    pub faults_max: u8,
    /// Whether the next message of a key may be sent before the previous one is confirmed.
    pub is_pipelined: bool,
    /// The rule that is left out.
    pub breakage: Breakage,
}

impl Relays {
    /// Returns bounds that are explored within seconds.
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

    /// Returns bounds that are explored within minutes, with a few gigabytes: more grants and
    /// faults for two entries, or a third entry, of the same key or another.
    #[must_use]
    pub fn large(is_pipelined: bool) -> Vec<Self> {
        let small = Self::small(is_pipelined);
        vec![
            Self { epochs_max: 3, faults_max: 2, ..small.clone() },
            Self { keys: vec![0, 0, 0], faults_max: 0, ..small.clone() },
            Self { keys: vec![0, 1, 0], faults_max: 0, ..small },
        ]
    }

    /// Returns the smallest bounds within which the absence of a rule shows.
    #[must_use]
    pub fn without(breakage: Breakage) -> Self {
        let mut model = Self { breakage, log_max: 3, ..Self::small(breakage == Breakage::RetryOvertakes) };
        // Only a message of another key can be confirmed out of turn.
        if breakage == Breakage::CheckpointOverGaps {
            model.keys = vec![0, 1];
        }
        model
    }

    fn key(&self, entry: Entry) -> u8 {
        self.keys[usize::from(entry)]
    }
}
