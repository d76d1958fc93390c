//! SQLite: there is one writer, so a statement that reads and then changes rows needs no lock of
//! its own.

mod statements;
mod store;
