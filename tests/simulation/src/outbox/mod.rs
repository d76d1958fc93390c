//! The relays' database.
//!
//! | file | what it holds |
//! |---|---|
//! | `tables.rs` | the stored state: the log, its transactions, the lease, exceptions |
//! | `history.rs` | going back to an earlier state |
//! | `checkpoint.rs` | stores a checkpoint, and checks its claim |
//! | `connection.rs` | a call that takes time, and can fail before or after it is applied |
//! | `store.rs`, `reader.rs`, `checkpoint_store.rs` | the relay's seam |

mod checkpoint;
mod checkpoint_store;
mod connection;
mod history;
mod reader;
mod store;
mod tables;

pub(crate) use store::SimulatedLog;
pub(crate) use tables::{OutboxTables, Row};
