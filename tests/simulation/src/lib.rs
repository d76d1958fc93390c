//! The relay engine and the consumer runner as they are, in a simulated world: virtual time, a
//! database, a broker and an inbox in memory, and faults at every step. One seed makes one course
//! of events.
//!
//! Nothing of the engine or the runner is replaced: reader, checkpointer, broker session, driver
//! and pipeline, key queues and workers run as tokio tasks on one thread with a paused clock. They
//! take tasks and random numbers from their [`Runtime`](message::Runtime), which decides when a
//! task has its turn, stops all tasks of a process at once, or lets it die at any await.
//!
//! After a while everything heals; then the system must come to rest within a bound of simulated
//! time, stop in order, and [`checker`] must find every promise kept. What only somebody who looks
//! on can see is checked while it happens: at every checkpoint, everything that the cursor has
//! passed is at the broker or parked; nobody publishes without the lease; a key has one message in
//! flight; a connection that failed is not used again; a relay's memory stays within its bounds at
//! every step.
//!
//! | module | what it holds |
//! |---|---|
//! | [`schedule`], [`fault`] | what is going to happen |
//! | [`process`] | a process that can be paused and killed |
//! | [`world`] | what processes share; `outbox`, `broker` and `inbox` are its parts |
//! | `fleet`, `producers`, `chaos` | processes, transactions and faults, at their time |
//! | [`mod@run`], `history` | one schedule to its end, and what the checker is shown |
//! | [`mod@shrink`] | a failing schedule made small |
//! | `memory` | what a relay may hold, looked at after every step |
//! | [`breakage`] | ways to break the surroundings, each of which must be found |
//! | [`mod@search`] | many schedules, on every core |
//! | [`containment`] | one topic falls silent under load: what becomes of the others |
//! | [`draining`] | a topic comes back under load: whether what was held leaves |
//! | [`trace`] | the course of events |

pub mod breakage;
mod broker;
mod chaos;
pub mod containment;
pub mod draining;
pub mod fault;
mod fleet;
mod history;
mod inbox;
mod memory;
mod outbox;
pub mod process;
mod producers;
pub mod run;
pub mod schedule;
pub mod search;
pub mod shrink;
pub mod trace;
pub mod world;

pub use breakage::Breakage;
pub use containment::Contained;
pub use run::{Failure, Outcome, run};
pub use schedule::Schedule;
pub use search::{Found, search};
pub use shrink::shrink;
