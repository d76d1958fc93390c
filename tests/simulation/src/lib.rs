//! The unchanged relay engine and consumer runner in a simulated world: virtual time, a database, a
//! broker and an inbox in memory, and faults at every step. One seed produces one course of events.
//!
//! Nothing of the engine or the runner is replaced: reader, checkpointer, broker session, driver
//! and pipeline, key queues and workers run as tokio tasks on one thread with a paused clock. They
//! take tasks and random numbers from their [`Runtime`](message::Runtime). It decides when a task
//! has its turn, stops all tasks of a process at once, or ends the process at any await.
//!
//! After a while everything heals. Then the system must come to rest within a bound of simulated
//! time and stop in order, and [`checker`] must find every promise kept. Some rules show only while
//! it runs, so they are checked all the time: at every checkpoint, everything that the cursor has
//! passed is at the broker or parked; only the holder of the lease publishes; a key has one message
//! in flight; a connection that failed is not used again; a relay's memory stays within its bounds
//! at every step.
//!
//! | module | what it holds |
//! |---|---|
//! | [`schedule`], [`fault`] | the plan of a run |
//! | [`process`] | a process that can be paused and killed |
//! | [`world`] | the state that processes share; `outbox`, `broker` and `inbox` are its parts |
//! | `fleet`, `producers`, `chaos` | run processes, transactions and faults when they are due |
//! | [`mod@run`], `history` | run one schedule to its end, and collect the history for the checker
//! |
//! | [`mod@shrink`] | a failing schedule made small |
//! | `memory` | bounds on a relay's memory, checked after every step |
//! | [`breakage`] | ways to break the environment, each of which must be found |
//! | [`mod@search`] | many schedules, on every core |
//! | [`mod@burst`] | one key has a burst, and its answers are slow: other keys must not wait for it |
//! | [`containment`] | one topic falls silent under load: the others must not suffer |
//! | [`draining`] | a topic comes back under load: held entries must leave |
//! | [`trace`] | the course of events |

pub mod breakage;
mod broker;
pub mod burst;
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
pub use burst::Burst;
pub use containment::Contained;
pub use run::{Failure, Outcome, run};
pub use schedule::Schedule;
pub use search::{Found, search};
pub use shrink::shrink;
