//! Racing workers of two consumers on one log: admit, effect, commit, acknowledge, expiry.
//!
//! | file | what it holds |
//! |---|---|
//! | `state.rs` | what there is |
//! | `action.rs` | what can happen next, and what then is |
//! | `promise.rs` | what must hold, and what must be reachable |
//! | `breakage.rs` | rules that can be left out |
//!
//! Every log over the entries up to a length is an initial state, so whatever relays do, its
//! outcome is among them. A worker may be handed any delivery that is not acknowledged, also one
//! that another worker has in hand: that covers redelivery, rebalance, and a worker that lost its
//! session and does not know.

mod action;
mod breakage;
mod promise;
mod state;

pub use action::Action;
pub use breakage::Breakage;
pub use state::{Inbox, State, Work};

/// The bounds of one exploration.
#[derive(Debug, Clone)]
pub struct Consumers {
    /// Different messages.
    pub entries: u8,
    /// How long the logs are at most, copies included.
    pub log_max: usize,
    /// The consumer's name of each worker.
    pub workers: Vec<usize>,
    /// How many crashes and commits of unknown outcome there are.
    pub faults_max: u8,
    /// The rule that is left out.
    pub breakage: Breakage,
}

impl Consumers {
    /// Bounds that explore within seconds.
    #[must_use]
    pub fn small() -> Self {
        Self { entries: 2, log_max: 2, workers: vec![0, 0, 1], faults_max: 1, breakage: Breakage::Nothing }
    }

    /// Bounds that explore within minutes.
    #[must_use]
    pub fn large() -> Self {
        Self { log_max: 3, faults_max: 2, ..Self::small() }
    }

    /// Small bounds with a rule left out.
    #[must_use]
    pub fn without(breakage: Breakage) -> Self {
        Self { breakage, ..Self::small() }
    }
}
