//! One saga and two workers: a local step, a call whose outcome may stay unknown, a request with a
//! reply; crashes, pauses, cancellation, and replies in any order.
//!
//! | file | what it holds |
//! |---|---|
//! | `state.rs` | the state |
//! | `action.rs` | the actions, and the states that follow |
//! | `forward.rs` | the work of a worker while the saga runs |
//! | `undo.rs` | the work of a worker while the saga is undone |
//! | `promise.rs` | properties that must hold, and states that must be reachable |
//! | `breakage.rs` | rules that can be left out |
//!
//! Harsher than the code: a lease may expire at any moment, and a worker that has lost it may
//! continue forever with what it read when it claimed the saga. That covers every pause. It may
//! still make calls, which the code's own clock would stop: the keys of the service must hold.

mod action;
mod breakage;
mod forward;
mod promise;
mod state;
mod undo;

pub use action::Action;
pub use breakage::Breakage;
pub use state::{Bank, CallRow, RequestRow, Rows, SagaState, State, StepRow, Undo, Worker};

/// The bounds of one exploration.
#[derive(Debug, Clone)]
pub struct Sagas {
    /// Maximum number of claims of the saga.
    pub claims_max: u8,
    /// Maximum number of crashes and lost answers.
    pub faults_max: u8,
    /// Maximum number of replies.
    pub replies_max: u8,
    /// The rule that is left out.
    pub breakage: Breakage,
}

impl Sagas {
    /// Returns bounds that are explored within seconds.
    #[must_use]
    pub fn small() -> Self {
        Self { claims_max: 3, faults_max: 2, replies_max: 2, breakage: Breakage::Nothing }
    }

    /// Returns bounds that are explored within minutes.
    #[must_use]
    pub fn large() -> Self {
        Self { claims_max: 5, faults_max: 3, ..Self::small() }
    }

    /// Returns small bounds with a rule left out.
    #[must_use]
    pub fn without(breakage: Breakage) -> Self {
        Self { breakage, ..Self::small() }
    }
}
