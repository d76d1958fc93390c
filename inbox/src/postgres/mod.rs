//! PostgreSQL: one partition per day of the message id's own time, so that forgetting is a DROP.

mod attempts;
mod guard;
mod lookup;
mod retention;
mod statements;

#[cfg(feature = "testing")]
pub use statements::listed_statements;
