//! Racing workers of two consumers on one log: admit, effect, commit, acknowledge, expiry.
//!
//! | file | what it holds |
//! |---|---|
//! | `state.rs` | the state |
//! | `action.rs` | the actions, and the states that follow |
//! | `promise.rs` | properties that must hold, and states that must be reachable |
//! | `breakage.rs` | rules that can be left out |
//!
//! Every log over the entries up to a length is an initial state, so every possible outcome of
//! relays is among them. A worker may receive any delivery that is not acknowledged, even one that
//! another worker is processing. That covers redelivery, a rebalance, and a worker that has lost
//! its session without noticing.

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
    /// Number of different messages.
    pub entries: u8,
    /// Maximum length of the logs, copies included.
    pub log_max: usize,
    /// The consumer of each worker.
    pub workers: Vec<usize>,
    /// Maximum number of crashes and commits of unknown outcome.
    pub faults_max: u8,
    /// The rule that is left out.
    pub breakage: Breakage,
}

impl Consumers {
    /// Returns bounds that are explored within seconds.
    #[must_use]
    pub fn small() -> Self {
        Self { entries: 2, log_max: 2, workers: vec![0, 0, 1], faults_max: 1, breakage: Breakage::Nothing }
    }

    /// Returns bounds that are explored within minutes.
    #[must_use]
    pub fn large() -> Self {
        Self { log_max: 3, faults_max: 2, ..Self::small() }
    }

    /// Returns small bounds without one rule.
    #[must_use]
    pub fn without(breakage: Breakage) -> Self {
        Self { breakage, ..Self::small() }
    }
}
