//! SQLite: its single writer makes every step atomic.

mod statements;
mod store;
