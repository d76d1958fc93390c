//! One saga and two workers: a local step, a call whose outcome may stay unknown, a request with a
//! reply; crashes, pauses, cancelling, and replies in any order.
//!
//! | file | what it holds |
//! |---|---|
//! | `state.rs` | what there is |
//! | `action.rs` | what can happen next |
//! | `forward.rs` | what a worker does while the saga runs |
//! | `undo.rs` | what it does while the saga is undone |
//! | `promise.rs` | what must hold, and what must be reachable |
//! | `breakage.rs` | rules that can be left out |
//!
//! Harsher than the code: a lease may be over at any moment, and a worker that has lost it goes on
//! for as long as it likes, with what it read when it took the saga. That covers every pause. It
//! may still make calls, which the code's own clock would stop: the service's keys have to hold.

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
    /// How often the saga is taken.
    pub claims_max: u8,
    /// How many crashes and lost answers there are.
    pub faults_max: u8,
    /// How many replies come.
    pub replies_max: u8,
    /// The rule that is left out.
    pub breakage: Breakage,
}

impl Sagas {
    /// Bounds that explore within seconds.
    #[must_use]
    pub fn small() -> Self {
        Self { claims_max: 3, faults_max: 2, replies_max: 2, breakage: Breakage::Nothing }
    }

    /// Bounds that explore within minutes.
    #[must_use]
    pub fn large() -> Self {
        Self { claims_max: 5, faults_max: 3, ..Self::small() }
    }

    /// Small bounds with a rule left out.
    #[must_use]
    pub fn without(breakage: Breakage) -> Self {
        Self { breakage, ..Self::small() }
    }
}
