//! The producer's part of the outbox in SQLite. The files correspond to those of `postgres/`,
//! without what only PostgreSQL needs.

pub mod clock;
mod enqueue;
mod nodes;
pub(crate) mod options;
