//! PostgreSQL: workers claim due sagas with SKIP LOCKED; a change locks the saga's row first.

mod statements;
mod store;

#[cfg(feature = "testing")]
pub use statements::listed_statements;
