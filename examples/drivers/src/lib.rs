//! The toolkit in the transactions of a service that uses another driver than sqlx. Copy the file
//! of your driver: it sends the statements of the crate `statements`, and decides nothing.
//!
//! | file | driver | its transaction |
//! |---|---|---|
//! | [`diesel`] | Diesel, synchronous | `PgConnection` in `transaction` |
//! | [`diesel_async`] | diesel-async | `AsyncPgConnection` in `transaction` |
//! | [`sea_orm`] | SeaORM | `DatabaseTransaction` |
//! | [`tokio_postgres`] | tokio-postgres, and pools over it | `Transaction` |
//!
//! Each file has the same functions:
//!
//! | function | what it does |
//! |---|---|
//! | `run` | an operation in the caller's transaction: enqueue, admit, finish, verify |
//! | `run_alone` | an operation that needs no transaction: failures, dead letters, maintenance |
//! | `apply` | handles one message in a transaction: guard, handler, commit, failure |
//! | `redrive` | handles the next message that an operator asked to redrive |
//! | `is_passing` | whether an error passes by itself: run the transaction again, and count nothing |

pub mod diesel;
pub mod diesel_async;
pub mod orders;
pub mod sea_orm;
pub mod tokio_postgres;
