//! A storm: producers, relays, consumers and workers of sagas in processes of their own, real
//! services, and faults at random; then everything is healed, everything is read with plain
//! clients, and the [checker] decides what held.
//!
//! | module | what it holds |
//! |---|---|
//! | [`cli`] | the command line |
//! | [`run`] | one storm from its first process to its verdict |
//! | [`faults`] | what can go wrong, each with its cure |
//! | [`stage`] | what a fault can reach: processes, wires, services, database, broker |
//! | [`setup`] | makes the stage |
//! | [`load`] | what producers do |
//! | [`consume`] | what consumers do |
//! | [`sagas`] | sagas over services of their own |
//! | [`journal`] | what both write down |
//! | [`topic_reader`], [`read`] | what is there in the end |
//! | `settle`, [`lag`], [`waits`] | from the last healed fault until everything has arrived |
//! | `backpressure` | producers wait while consumers are far behind |
//! | [`memory`] | resident memory of relays and consumers |
//! | [`verdict`] | *holds*, *broken* or *no verdict* |
//! | [`report`], [`phases`], [`progress`] | what a person sees |
//! | [`pair`], [`process`] | what all of them need |
//!
//! Processes, workload, journals, plain readers, the schedule of faults and their injector are of
//! the crate `harness`, which the demo shares.

mod backpressure;
pub mod cli;
pub mod consume;
pub mod faults;
pub mod journal;
pub mod lag;
pub mod load;
pub mod memory;
pub mod pair;
pub mod phases;
pub mod process;
pub mod progress;
pub mod read;
pub mod report;
pub mod run;
pub mod sagas;
mod settle;
pub mod setup;
pub mod stage;
pub mod topic_reader;
pub mod verdict;
pub mod waits;

pub use harness::{Failure, clock, content, workload};
