//! The parts of migrating that differ between dialects.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Pool, Transaction};

use crate::error::{MigrateError, SchemaError};
use crate::identifier::Identifier;
use crate::line::{Line, Migration};
use crate::patience::Patience;
use crate::query::Values;
use crate::sql::Statement;
use crate::status::Applied;

/// A database for which the toolkit has tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// PostgreSQL 13 or newer.
    Postgres,
    /// SQLite 3.43 or newer.
    Sqlite,
}

impl Dialect {
    /// All dialects.
    pub const ALL: [Self; 2] = [Self::Postgres, Self::Sqlite];

    /// Returns the lower-case word for logs and file names.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Sqlite => "sqlite",
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

mod sealed {
    pub trait Sealed {}
    #[cfg(feature = "postgres")]
    impl Sealed for sqlx::Postgres {}
    #[cfg(feature = "sqlite")]
    impl Sealed for sqlx::Sqlite {}
}

/// The part of migrating that belongs to the dialect. Sealed: implemented for `sqlx::Postgres` and
/// `sqlx::Sqlite`, each with its feature.
pub trait Backend: Values + sealed::Sealed {
    /// The dialect.
    const DIALECT: Dialect;

    /// SQL that creates the bookkeeping table unless it exists; `{schema}` precedes its name.
    #[doc(hidden)]
    const BOOKKEEPING: &'static str;

    /// The check of [`check_place`](Self::check_place) in a script.
    #[doc(hidden)]
    const CHECK_PLACE: &'static str;

    /// Acquires a connection to begin a transaction on. On SQLite it is outside any other one.
    /// Cancel-safe.
    #[doc(hidden)]
    fn acquire_outside(
        pool: &Pool<Self>,
    ) -> impl Future<Output = Result<PoolConnection<Self>, sqlx::Error>> + Send {
        pool.acquire()
    }

    /// Begins a transaction that can write, and sets a mark that ends with it
    /// ([`own_transaction`](crate::own_transaction)). On SQLite its commit waits for the disk. Not
    /// cancel-safe: `outbox::begin_on` is.
    #[doc(hidden)]
    fn begin_marked(
        connection: PoolConnection<Self>,
    ) -> impl Future<Output = Result<Transaction<'static, Self>, sqlx::Error>> + Send + 'static;

    /// Makes later commits of a connection wait for the disk, if only a setting of the connection
    /// decides that. The setting stays. The connection must be outside a transaction.
    ///
    /// Does nothing on PostgreSQL, where a statement can decide it for its own transaction
    /// ([`waits_for_the_disk`](crate::waits_for_the_disk)).
    #[doc(hidden)]
    fn wait_for_the_disk(
        _connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        std::future::ready(Ok(()))
    }

    /// Refuses a transaction whose commit would not wait for the disk, if that cannot be changed
    /// inside it. Accepts every transaction on PostgreSQL.
    #[doc(hidden)]
    fn check_it_waits_for_the_disk(
        _connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        std::future::ready(Ok(()))
    }

    /// Returns whether the client believes that it is inside a transaction. Costs no round trip on
    /// PostgreSQL.
    #[doc(hidden)]
    fn is_open(connection: &mut Self::Connection) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Returns whether a rollback failed because its transaction had already ended.
    #[doc(hidden)]
    #[must_use]
    fn was_over(_rollback: &sqlx::Error) -> bool {
        false
    }

    /// Sets the mark of a transaction that was begun without one.
    #[doc(hidden)]
    fn mark(connection: &mut Self::Connection) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Returns whether the mark of the transaction is still there. Fails in a transaction that has
    /// failed. Call it after the caller's last statement: on SQLite it ends the caller's
    /// savepoints.
    #[doc(hidden)]
    fn is_marked(connection: &mut Self::Connection)
    -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Returns the first statements of a script that is run by hand. They exclude running
    /// migrators, and wait for one up to `wait_max` where the database does not limit that itself.
    #[doc(hidden)]
    #[must_use]
    fn begin_script(wait_max: Duration) -> String;

    /// Begins a transaction that excludes every other migrator, and waits patiently for one.
    #[doc(hidden)]
    fn begin<'c>(
        connection: &'c mut Self::Connection,
        patience: &Patience,
    ) -> impl Future<Output = Result<Transaction<'c, Self>, MigrateError>> + Send;

    /// Checks that the database can store the texts of a line.
    #[doc(hidden)]
    fn check_texts(
        connection: &mut Self::Connection,
        line: Line,
    ) -> impl Future<Output = Result<(), MigrateError>> + Send;

    /// Checks that new tables would be created beside those that exist, where only the session
    /// determines the schema.
    #[doc(hidden)]
    fn check_place(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), MigrateError>> + Send;

    /// Runs a script of several statements.
    #[doc(hidden)]
    fn run(
        connection: &mut Self::Connection,
        script: &Statement,
        what: String,
    ) -> impl Future<Output = Result<(), MigrateError>> + Send;

    /// Records an applied migration.
    #[doc(hidden)]
    fn record(
        connection: &mut Self::Connection,
        schema: Option<&Identifier>,
        line: Line,
        migration: &Migration,
    ) -> impl Future<Output = Result<(), MigrateError>> + Send;

    /// Reads the bookkeeping table; empty when it does not exist. Takes no lock and never makes the
    /// caller's transaction fail.
    #[doc(hidden)]
    fn applied(
        connection: &mut Self::Connection,
        schema: Option<&Identifier>,
        line: Line,
    ) -> impl Future<Output = Result<Vec<Applied>, MigrateError>> + Send;

    /// Returns whether all of a line's tables exist beside the bookkeeping table. Takes no lock.
    #[doc(hidden)]
    fn has_tables(
        connection: &mut Self::Connection,
        schema: Option<&Identifier>,
        known: &[Migration],
    ) -> impl Future<Output = Result<bool, MigrateError>> + Send;

    /// Returns the first fault of a line's tables and functions that loses messages without an
    /// error. Takes no lock.
    #[doc(hidden)]
    fn fault(
        _connection: &mut Self::Connection,
        _schema: Option<&Identifier>,
        _line: Line,
        _known: &[Migration],
    ) -> impl Future<Output = Result<Option<SchemaError>, MigrateError>> + Send {
        std::future::ready(Ok(None))
    }

    /// Returns the schema with the tables, if this role may not use it.
    #[doc(hidden)]
    fn unusable(
        _connection: &mut Self::Connection,
        _schema: Option<&Identifier>,
    ) -> impl Future<Output = Result<Option<SchemaError>, MigrateError>> + Send {
        std::future::ready(Ok(None))
    }

    /// Returns a line's tables with row-level security.
    #[doc(hidden)]
    fn with_row_security(
        _connection: &mut Self::Connection,
        _schema: Option<&Identifier>,
        _known: &[Migration],
    ) -> impl Future<Output = Result<Vec<String>, MigrateError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// Returns a line's tables and partitions that a crash of the server empties.
    #[doc(hidden)]
    fn unlogged(
        _connection: &mut Self::Connection,
        _schema: Option<&Identifier>,
        _line: Line,
        _known: &[Migration],
    ) -> impl Future<Output = Result<Vec<String>, MigrateError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// Returns the indexes and partitions that a line's migrations created and that are not usable.
    #[doc(hidden)]
    fn missing(
        _connection: &mut Self::Connection,
        _schema: Option<&Identifier>,
        _line: Line,
        _known: &[Migration],
    ) -> impl Future<Output = Result<Vec<String>, MigrateError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// Sets the schema in a line's functions to their own. Returns whether one named another.
    #[doc(hidden)]
    fn bring_home(
        _connection: &mut Self::Connection,
        _schema: Option<&Identifier>,
        _line: Line,
        _known: &[Migration],
    ) -> impl Future<Output = Result<bool, MigrateError>> + Send {
        std::future::ready(Ok(false))
    }

    /// Describes the tables of a line as text.
    #[doc(hidden)]
    fn describe(
        connection: &mut Self::Connection,
        schema: Option<&Identifier>,
        line: Line,
    ) -> impl Future<Output = Result<String, MigrateError>> + Send;
}
