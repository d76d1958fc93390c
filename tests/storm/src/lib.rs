//! A storm: producers, relays, consumers and saga workers in separate processes, real services, and
//! random faults. Then everything is healed and read with plain clients, and the [checker] decides
//! which promises held.
//!
//! | module | contents |
//! |---|---|
//! | [`cli`] | the command line |
//! | [`run`] | one storm from its first process to its verdict |
//! | [`faults`] | the faults, each with its cure |
//! | [`stage`] | everything that a fault can reach: processes, wires, services, database, broker |
//! | [`setup`] | sets up the stage |
//! | [`load`] | the work of producers |
//! | [`consume`] | the work of consumers |
//! | [`sagas`] | sagas over their own services |
//! | [`journal`] | the journals of processes and faults |
//! | [`topic_reader`], [`read`] | readers of the final state |
//! | `settle`, [`lag`], [`waits`] | from the last healed fault until everything has arrived |
//! | `backpressure` | producers wait while consumers are far behind |
//! | [`memory`] | resident memory of relays and consumers |
//! | [`verdict`] | *holds*, *broken* or *no verdict* |
//! | [`report`], [`phases`], [`progress`] | output for people |
//! | [`pair`], [`process`], `serving` | shared by all of them |
//!
//! Processes, workload, journals, plain readers, the schedule of faults and their injector are in
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
mod serving;
mod settle;
pub mod setup;
pub mod stage;
pub mod topic_reader;
pub mod verdict;
pub mod waits;

pub use harness::{Failure, clock, content, workload};
