//! SQLite: plain tables, one writer at a time. It takes no arrays, and runs in this process: there
//! are no round trips to save, so many rows are written and looked up one by one.

mod attempts;
mod guard;
mod lookup;
#[cfg(test)]
mod plans;
mod retention;
mod statements;
