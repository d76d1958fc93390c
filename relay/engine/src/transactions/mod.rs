//! Publishing in transactions of the broker: each checkpoint is committed with the messages that it
//! is about, and goes to the database afterwards. ADR 30 has the protocol and its proof.
//!
//! | file | what is in it |
//! |---|---|
//! | `mark.rs` | a checkpoint as bytes, for the broker to keep |
//! | `recovery.rs` | what a new holder of the lease does before it leads |
//! | `flushes.rs` | whether what a mark names would survive a crash of the database |
//! | `commits.rs` | where the transaction of a leader stands |

mod commits;
#[cfg(test)]
mod flush_tests;
mod flushes;
mod mark;
mod recovery;
#[cfg(test)]
mod tests;

pub(crate) use commits::Commits;
pub(crate) use recovery::{Recovered, Recovering, Recovery};
