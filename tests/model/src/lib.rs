//! The protocol as a finite model, explored exhaustively: every interleaving within stated bounds.
//!
//! The code is tested elsewhere; this tests the *idea*. The models are written from the invariants
//! of `ARCHITECTURE.md`, not from the code, and are deliberately harsher. A relay that has lost its
//! lease may continue to publish forever, because no clock stops it. Whatever it sent before it
//! crashed or reconnected may arrive at any later time. A zombie is harmless if order still holds:
//! that is the claim.
//!
//! | module | what it holds |
//! |---|---|
//! | [`relays`] | producers, two relays, lease, cursor, network, broker, and a consumer with its inbox |
//! | [`consumers`] | racing workers of two consumers on a log with any repetitions: admit, effect, commit, acknowledge |
//! | [`pending`] | a relay on a database that shows no snapshots: rows that are pending, and a replica that lags |
//! | [`sagas`] | a saga and two workers: a step, a call, a request, and their undos |
//! | [`transactions`] | a relay that publishes in transactions, and the marks from which its successor continues |
//! | [`sets`] | small sets, and the cursor |
//! | [`explore`](mod@explore) | explores a model and returns the findings |
//!
//! Each model has *breakages*: rules that are left out one at a time. The tests demand that each of
//! them is found, so a property that could not fail would be noticed.

pub mod consumers;
pub mod explore;
pub mod pending;
pub mod relays;
pub mod sagas;
pub mod sets;
pub mod transactions;

pub use explore::{Explored, explore};

#[cfg(test)]
mod tests;
