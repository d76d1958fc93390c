//! SQLite: there is one writer, so a statement that reads and then changes rows needs no extra
//! lock.

mod statements;
mod store;
