//! SQLite: plain tables, one writer at a time.

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
mod values;

pub(crate) use reconcile::SqliteMemory;
