//! Differences between the databases. The trait is sealed: implemented for `sqlx::Postgres` and
//! `sqlx::Sqlite`.
//!
//! What all databases do in the same way is written once, in `tables`, and each has the texts of the
//! statements. The parts of this trait are what they do in their own way: each part has its own file
//! here and in each dialect. All of it is input and output; the callers decide what follows.

mod attempts;
mod guard;
mod lookup;
mod retention;
mod values;

use sqlx::database::HasStatementCache;

pub(crate) use guard::Guards;
pub use values::{
    ChunkSet, Content, Inserted, Key, Mark, NewRow, Outcome, Overdue, Reading, Session, Stored,
};

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
pub mod parts {
    #[doc(hidden)]
    pub use super::{attempts::Attempts, guard::Guards, lookup::Lookup, retention::Retention};
}
