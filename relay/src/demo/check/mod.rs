//! The events of a run, read without the toolkit, and the verdict about them.
//!
//! | file | what it holds |
//! |---|---|
//! | `observations.rs` | everything that was observed |
//! | `database.rs` | business rows, outbox, inbox and effects, read with plain SQL |
//! | `history.rs` | the same in the words of the independent checker |
//! | `verdict.rs` | its verdict in the words of the demo |

mod database;
mod history;
mod observations;
mod verdict;

pub(crate) use database::{read_consumer, read_producer};
pub(crate) use observations::{LogRecord, Observations, Observed};
pub(crate) use verdict::Verdict;
