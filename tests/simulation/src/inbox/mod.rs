//! The consumers' database, and their handler.
//!
//! | file | what it holds |
//! |---|---|
//! | `tables.rs` | inbox rows, effects, attempts, dead letters, and row locks |
//! | `transaction.rs` | a transaction, which is invisible before its commit |
//! | `store.rs` | the runner's seam |

mod store;
mod tables;
mod transaction;

pub(crate) use store::SimulatedInbox;
pub(crate) use tables::InboxTables;
pub(crate) use transaction::content;
