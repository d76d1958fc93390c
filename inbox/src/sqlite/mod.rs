//! SQLite: plain tables, one writer at a time.

mod attempts;
mod dead_letters;
mod guard;
mod retention;
mod statements;
mod values;
