//! Differences between the databases. The trait is sealed: implemented for `sqlx::Postgres` and
//! `sqlx::Sqlite`.
//!
//! Each part of this trait has its own file here and in each dialect. The parts do the input and
//! output; their callers, shared by both databases, decide what follows.

mod attempts;
mod chunks;
mod dead_letters;
mod decisions;
mod guard;
mod held_keys;
mod known;
mod minutes;
mod retention;
mod values;

use sqlx::database::HasStatementCache;

pub(crate) use chunks::group_splits;
use guard::Guards;
pub use values::{
    ChunkSet, Content, Inserted, Key, Mark, NewRow, Outcome, Overdue, Reading, Session, Stored,
};

/// A database that the inbox has tables in: PostgreSQL or SQLite.
pub trait Dialect:
    outbox::Dialect
    + HasStatementCache
    + Guards
    + parts::Retention
    + parts::Attempts
    + parts::DeadLetters
    + parts::HeldKeys
    + parts::Decisions
    + parts::Chunks
    + parts::Lookup
    + parts::Minutes
{
}

#[cfg(feature = "postgres")]
impl Dialect for sqlx::Postgres {}
#[cfg(feature = "sqlite")]
impl Dialect for sqlx::Sqlite {}

/// The parts of a dialect.
pub mod parts {
    #[doc(hidden)]
    pub use super::{
        attempts::Attempts, chunks::Chunks, dead_letters::DeadLetters, decisions::Decisions, guard::Guards,
        held_keys::HeldKeys, known::Lookup, minutes::Minutes, retention::Retention,
    };
}
