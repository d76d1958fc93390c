//! Publishing in broker transactions: each checkpoint is committed with its messages, and goes to
//! the database afterwards. ADR 30 has the protocol and its proof.
//!
//! | file | what is in it |
//! |---|---|
//! | `mark.rs` | a checkpoint as bytes, for the broker to keep |
//! | `recovery.rs` | the work of a new lease holder before it leads |
//! | `flushes.rs` | whether everything that a mark names would survive a crash of the database |
//! | `commits.rs` | the open and the closed transaction of a leader |

mod commits;
#[cfg(test)]
mod flush_tests;
mod flushes;
mod mark;
mod recovery;
#[cfg(test)]
mod tests;

pub(crate) use commits::Commits;
pub(crate) use recovery::{Continued, Recovering, Recovery};
