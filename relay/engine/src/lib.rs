//! The engine of a relay: one log of an outbox, read in order, published, settled, checkpointed.
//!
//! [`Pipeline`] is all of it: standby, takeover, lead, start again, until it is stopped. A service
//! embeds it through `outbox-toolkit`; the program `relay` runs several.
//!
//! Decisions are pure and live apart from I/O:
//!
//! | module | what it decides |
//! |---|---|
//! | [`machine`] | the whole state of one lease: what to publish, what every outcome means, where the cursor stands |
//! | [`window`] | what is in memory, and how far the cursor may move |
//! | [`key_queues`] | which entries may be submitted without endangering the order of their key |
//! | [`blocks`] | which keys and topics wait, and for what |
//! | [`stuck`] | what stops a key |
//! | [`held`] | from where on held entries of a key are read back |
//! | [`paused`] | which topics and keys an operator has paused |
//! | [`filter`] | which entries the relay publishes |
//! | `due` | when to look for what is due, and from where on |
//! | [`silence`] | which destinations have stopped answering, and how far that reaches |
//! | [`awaited`] | which submissions were given up waiting for, and may still be answered |
//! | [`decide`](mod@decide) | whose fault a failure is and what follows |
//! | [`failures`] | after how many failures an entry waits how long |
//! | [`wake`] | how often to poll |
//!
//! and around them, each its own task with its own connection:
//!
//! | module | what it does |
//! |---|---|
//! | [`reader`] | reads pages ahead, and exceptions when asked |
//! | [`checkpointer`] | renews the lease, stores checkpoints |
//! | `chunking` | splits what is larger than the destination takes, on its way to the publisher |
//! | [`broker_session`] | one session with the broker after another |
//! | [`driver`] | moves everything between them while the lease is held |
//! | `transactions` | the same with transactions of the broker: commits, and what a successor makes of the last mark |
//! | `takeover` | everything that a new holder of the lease has to know, and the lease kept meanwhile |
//! | `publishing` | [`Publishing`]: each message by itself, or in transactions of the broker |
//! | [`pipeline`] | standby, takeover, lead, start again: from start to shutdown |
//!
//! Beside the lease, and reported by all:
//!
//! | module | what it does |
//! |---|---|
//! | [`event`] | what the engine reports, as data |
//! | [`telemetry`] | makes log lines, metrics and spans of it |
//! | [`maintenance`] | removes history that every relay has passed |
//! | [`monitor`] | looks at the database for metrics |
//! | `crash_points` | where a test ends the process |

pub mod awaited;
pub mod blocks;
pub mod broker_session;
pub mod checkpointer;
pub mod chunking;
#[cfg(not(feature = "testing"))]
mod crash_points;
#[cfg(feature = "testing")]
pub mod crash_points;
pub mod decide;
pub mod driver;
mod due;
pub mod event;
pub mod failures;
pub mod filter;
pub mod held;
pub mod key_queues;
pub mod machine;
pub mod maintenance;
pub mod monitor;
pub mod options;
pub mod paused;
pub mod pipeline;
mod publishing;
pub mod reader;
pub mod silence;
pub mod stuck;
mod takeover;
pub mod telemetry;
mod transactions;
pub mod wake;
pub mod window;

#[cfg(test)]
mod properties;

pub use filter::{Filter, InvalidFilter, Rule};
pub use options::{DeadPolicy, EngineOptions, RetryPolicy};
pub use pipeline::{Pipeline, Role, Status};
pub use publishing::Publishing;
