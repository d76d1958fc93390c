//! SQLite: there is one writer, so a statement that looks and changes needs no lock of its own.

mod statements;
mod store;
