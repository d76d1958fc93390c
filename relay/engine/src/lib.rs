//! The engine of a relay: it reads the log of one outbox in order, publishes, settles and
//! checkpoints.
//!
//! [`Pipeline`] is the whole: standby, takeover, leading, and again, until it is stopped. A service
//! embeds it through `outbox-toolkit`; the program `relay` runs several.
//!
//! Decisions are pure and live apart from I/O:
//!
//! | module | what it decides |
//! |---|---|
//! | `machine` | the whole state of one lease: what to publish, what every outcome means, where the cursor stands |
//! | `window` | what is in memory, and how far the cursor may move |
//! | `key_queues` | which entries may be submitted without endangering the order of their key |
//! | `blocks` | which keys and topics wait, and for what |
//! | `stuck` | what stops a key |
//! | `busy` | which topics have more messages than their destinations take soon |
//! | `suspects` | which message may itself be the reason why its topic is blocked |
//! | `held` | from which entry on the held entries of a key are read back |
//! | `topic_queues` | which of them go on when a topic does |
//! | `paused` | which topics and keys an operator has paused |
//! | `filter` | which entries the relay publishes |
//! | `due` | when to look for due exceptions, and from which position on |
//! | `silence` | which destinations have stopped answering, and how far the silence reaches |
//! | `awaited` | which submissions may still be answered although their places in the window are free |
//! | `amount` | a number of messages, with their bytes |
//! | `decide` | the next step after a failure |
//! | `failures` | how long an entry waits after repeated failures |
//! | `wake` | how often to poll |
//!
//! and around them, each its own task with its own connection:
//!
//! | module | what it does |
//! |---|---|
//! | `reader` | reads pages ahead, and exceptions when asked |
//! | `checkpointer` | renews the lease, stores checkpoints |
//! | `chunking` | splits messages that are larger than the destination accepts, on their way to the publisher |
//! | `broker_session` | one session with the broker after another |
//! | `driver` | moves everything between them while the lease is held |
//! | `transactions` | the same with broker transactions: commits, and how a successor continues from the last mark |
//! | `takeover` | loads the state that a new lease holder needs, and renews the lease meanwhile |
//! | `publishing` | [`Publishing`]: each message separately, or in broker transactions |
//! | `pipeline` | standby, takeover, leading, and again: from start to shutdown |
//!
//! Independent of the lease, and shared by all:
//!
//! | module | what it does |
//! |---|---|
//! | `settings` | the list of all settings, with text, default and bounds |
//! | `options` | [`EngineOptions`]: the settings as a struct |
//! | `bounds` | [`InvalidSetting`]: the checks of the settings |
//! | `event` | what the engine reports, as data |
//! | [`telemetry`] | turns these reports into log lines, metrics and spans |
//! | [`maintenance`] | removes history that every relay has passed |
//! | [`monitor`] | looks at the database for metrics |
//! | `crash_points` | places at which a test ends the process |

#![cfg_attr(not(feature = "testing"), allow(unreachable_pub, reason = "the feature exposes more to tests"))]

mod amount;
mod awaited;
mod blocks;
mod bounds;
mod broker_session;
mod bursts;
mod busy;
mod checkpointer;
mod chunking;
#[cfg(not(feature = "testing"))]
mod crash_points;
#[cfg(feature = "testing")]
pub mod crash_points;
mod decide;
mod driver;
mod due;
mod event;
mod failures;
mod filter;
mod held;
mod key_queues;
mod machine;
pub mod maintenance;
pub mod monitor;
mod options;
mod paused;
mod pipeline;
mod publishing;
mod reader;
mod settings;
mod silence;
mod stuck;
mod suspects;
mod takeover;
pub mod telemetry;
mod topic_queues;
mod transactions;
mod wake;
mod window;

#[cfg(test)]
mod properties;

pub use bounds::InvalidSetting;
pub use chunking::Chunking;
pub use filter::{Filter, InvalidFilter, InvalidRule, Rule};
pub use options::EngineOptions;
pub use pipeline::{AfterFault, KeptEnd, Pipeline, Role, Status};
pub use publishing::Publishing;
pub use settings::{DeadPolicy, SettingValue};

#[cfg(feature = "testing")]
pub mod simulation {
    //! The state of a lease and its events, for simulations. It is not part of the stable
    //! interface.
    pub use crate::driver::Observer;
    pub use crate::event::Event;
    pub use crate::machine::Machine;
}
