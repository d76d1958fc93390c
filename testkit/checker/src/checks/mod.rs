//! The checks: a separate function decides each promise. Pure, and linear in the history.
//!
//! | file | promises |
//! |---|---|
//! | `atomic.rs` | business rows and messages commit together |
//! | `outcomes.rs` | clients got true answers |
//! | `delivery.rs` | no loss, no phantom |
//! | `settlement.rs` | settled rows are published, the cursor is true |
//! | `content.rs` | every copy is the same |
//! | `order.rs` | causal order of each key |
//! | `effects.rs` | at most once, exactly once, inbox row if and only if effect |
//! | `fencing.rs` | stale epochs change nothing |
//! | `containment.rs` | a poisoned message delays only its own key |
//! | `retention.rs` | retention removes only decided messages |
//! | `leaks.rs` | nothing stays held |
//! | `sagas.rs` | steps and undos of sagas, their ends, the balances of services |

mod atomic;
mod containment;
mod content;
mod delivery;
mod effects;
mod fencing;
mod leaks;
mod order;
mod outcomes;
mod retention;
mod sagas;
mod settlement;

use crate::history::History;
use crate::index::Index;
use crate::verdict::{Findings, NotChecked, Promise, Ruling};

/// A function that decides one promise, or returns the part that was not observed.
type Check = fn(&Index<'_>, &mut Findings) -> Result<(), NotChecked>;

/// Returns the check of a promise.
fn check_of(promise: Promise) -> Check {
    match promise {
        Promise::Atomic => atomic::check,
        Promise::HonestOutcomes => outcomes::check,
        Promise::NoLoss => delivery::check_loss,
        Promise::NoPhantom => delivery::check_phantoms,
        Promise::SettledIsStored => settlement::check_settled,
        Promise::CursorIsTrue => settlement::check_cursor,
        Promise::Unaltered => content::check,
        Promise::CausalOrder => order::check,
        Promise::AtMostOnce => effects::check_at_most_once,
        Promise::ExactlyOnce => effects::check_exactly_once,
        Promise::InboxIffEffect => effects::check_inbox,
        Promise::Fencing => fencing::check,
        Promise::Containment => containment::check,
        Promise::Retention => retention::check,
        Promise::NoLeak => leaks::check,
        Promise::SagaStarts => sagas::check_starts,
        Promise::SagaSteps => sagas::check_steps,
        Promise::SagaUndos => sagas::check_undos,
        Promise::SagaEnds => sagas::check_ends,
        Promise::SagaMoney => sagas::check_money,
    }
}

/// Decides every promise.
pub(crate) fn all(history: &History, breaches_max: usize) -> Vec<Ruling> {
    let index = Index::new(history);
    let decide = |promise: Promise| {
        let mut findings = Findings::new(breaches_max);
        let decided = check_of(promise)(&index, &mut findings);
        findings.ruling(promise, decided)
    };
    Promise::ALL.into_iter().map(decide).collect()
}

/// The reason why a check is not done before everything is quiet. The other reasons name a part
/// that was not read.
const RUNNING: NotChecked = "the system was still running";
const NO_OUTBOX: NotChecked = "the outbox was not read";
const NO_TOPIC_READ: NotChecked = "the broker was not read";
const TOPIC_READ_INCOMPLETE: NotChecked = "not all of the broker was read";
const NO_PARKED: NotChecked = "parked messages were not read";
const NO_OPERATIONS: NotChecked = "the actions of clients were not recorded";
const NO_EFFECTS: NotChecked = "no effects were read";

/// Returns the part, or the reason why nothing can be decided without it.
fn need<T>(part: &Option<T>, otherwise: NotChecked) -> Result<&T, NotChecked> {
    part.as_ref().ok_or(otherwise)
}

/// Fails unless the system has become quiet.
fn need_quiet(index: &Index<'_>) -> Result<(), NotChecked> {
    if index.history.quiet { Ok(()) } else { Err(RUNNING) }
}
