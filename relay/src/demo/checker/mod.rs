//! The independent checker: what happened, read without the toolkit, and what it means.
//!
//! | file | what it holds |
//! |---|---|
//! | `history.rs` | everything that was observed |
//! | `database.rs` | business rows, outbox, inbox and effects, read with plain SQL |
//! | `verdict.rs` | each promise decided from a history; pure |

mod database;
mod history;
mod verdict;

pub(crate) use database::{read_consumer, read_producer};
pub(crate) use history::{History, LogRecord, Observed};
pub(crate) use verdict::{Breach, Verdict};
