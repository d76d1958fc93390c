//! The relays' database.
//!
//! | file | what it holds |
//! |---|---|
//! | `tables.rs` | the log, its transactions, the lease, exceptions: what is stored |
//! | `history.rs` | going back to an earlier state |
//! | `checkpoint.rs` | storing a checkpoint, and looking at what it claims |
//! | `connection.rs` | a call that takes time and can fail on the way there and on the way back |
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
