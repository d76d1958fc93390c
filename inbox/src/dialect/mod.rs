//! Differences between the databases. The trait is sealed: implemented for `sqlx::Postgres` and
//! `sqlx::Sqlite`.
//!
//! The statements that all databases run in the same way are written once, in `tables`; each
//! database has their texts. The parts of this trait are the operations that each does in its own
//! way. Each part has its own file, here and in each dialect. All of it is input and output; the
//! callers decide what follows.

mod attempts;
mod guard;
mod lookup;
mod retention;
mod values;

use sqlx::database::HasStatementCache;

pub(crate) use guard::Guards;
pub(crate) use values::{ChunkSet, Inserted, Mark, NewRow, Outcome, Overdue, Reading, Session};

/// A database that the inbox has tables in: PostgreSQL or SQLite.
pub trait Dialect:
    outbox::Dialect + HasStatementCache + Guards + parts::Retention + parts::Attempts + parts::Lookup
{
}

#[cfg(feature = "postgres")]
impl Dialect for sqlx::Postgres {}
#[cfg(feature = "sqlite")]
impl Dialect for sqlx::Sqlite {}

/// The parts of a dialect.
pub(crate) mod parts {
    pub(crate) use super::{attempts::Attempts, lookup::Lookup, retention::Retention};
}
