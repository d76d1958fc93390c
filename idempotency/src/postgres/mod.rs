//! PostgreSQL: a transaction takes an advisory lock on a key before it reads or writes the row.

mod statements;
mod store;

#[cfg(feature = "testing")]
pub use statements::listed_statements;
