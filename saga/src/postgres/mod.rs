//! PostgreSQL: workers take what is due with SKIP LOCKED; a change locks the saga's row first.

mod statements;
mod store;
