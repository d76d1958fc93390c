//! PostgreSQL: one partition per day of the message id's own time, so that forgetting is a DROP.

mod attempts;
mod chunks;
mod dead_letters;
mod decisions;
mod guard;
mod held_keys;
mod known;
mod minutes;
mod reconcile;
mod retention;
mod statements;

pub(crate) use reconcile::PostgresMemory;
