//! The protocol as a finite model, explored exhaustively: every interleaving within stated bounds.
//!
//! The code is tested elsewhere; here the *idea* is. The models are written from the invariants of
//! `ARCHITECTURE.md`, not from the code, and are deliberately harsher than it: a relay that has
//! lost its lease goes on publishing for as long as it likes (no clock stops it), and what it sent
//! before it crashed or reconnected may arrive at any later time. That order holds even so is the
//! claim that a zombie is harmless.
//!
//! | module | what it holds |
//! |---|---|
//! | [`relays`] | producers, two relays, lease, cursor, network, broker, and a consumer with its inbox |
//! | [`consumers`] | racing workers of two consumers on a log with any repetitions; admit, effect, commit, acknowledge |
//! | [`sagas`] | a saga and two workers: a step, a call, a request, their undos |
//! | [`transactions`] | a relay that publishes in transactions, and the marks that its successor goes on from |
//! | [`sets`] | small sets and the cursor |
//! | [`explore`](mod@explore) | explores a model and says what was found |
//!
//! Each model has *breakages*: rules left out one at a time. The tests demand that every one of
//! them is found, so a property that could not fail would be noticed.

pub mod consumers;
pub mod explore;
pub mod relays;
pub mod sagas;
pub mod sets;
pub mod transactions;

pub use explore::{Explored, explore};

#[cfg(test)]
mod tests;
