//! The log in SQLite.
//!
//! There is one writer at a time, so ids ascend in the order of commits, and reading "everything
//! above the last id" misses nothing: a mark is an id. The files correspond to those of
//! `postgres/`, without what only PostgreSQL needs.

mod admin;
mod checkpoint_store;
mod entries;
mod file;
mod fragments;
mod mark;
pub(crate) mod options;
mod page;
#[cfg(test)]
mod plans;
#[cfg(test)]
mod properties;
mod reader;
mod reconcile;
mod rest;
mod retention;
mod row;
mod statements;
pub(crate) mod store;
mod tables;

pub(crate) use reconcile::SqliteRows;
pub(crate) use store::SqliteLog;

#[cfg(feature = "fuzzing")]
pub(crate) fn rewritten(mark: &crate::Mark) -> Result<crate::Mark, crate::LogError> {
    mark::id_of(mark).map(|id| crate::Mark::new(id.to_string()))
}
