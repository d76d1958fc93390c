//! The database of tables other than the log: idempotency keys and sagas.

use migrations::Dialect;
#[cfg(feature = "postgres")]
use outbox::connect::postgres_options;
use outbox::connect::sqlite_options;
use outbox_log::{LogError, LogOptions};
use secrecy::{ExposeSecret as _, SecretString};
#[cfg(feature = "postgres")]
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, Pool};

use super::error::OperateError;
use crate::settings::Database;

/// A database with such tables.
pub struct Tables {
    url: SecretString,
    /// The options of connections.
    pub options: LogOptions,
}

/// The options of a connection, by dialect.
pub enum ConnectOptions {
    /// Of PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres(PgConnectOptions),
    /// Of SQLite.
    Sqlite(SqliteConnectOptions),
}

impl Tables {
    /// Creates it from a URL.
    #[must_use]
    pub fn new(url: SecretString, options: LogOptions) -> Self {
        Self { url, options }
    }

    /// Returns the URL, including its password.
    #[must_use]
    pub fn url(&self) -> &str {
        self.url.expose_secret()
    }

    /// Returns host, port and name of the database, without the user. Returns the URL itself where
    /// these are unknown.
    #[must_use]
    pub fn place(&self) -> String {
        match self.connect_options("") {
            #[cfg(feature = "postgres")]
            Ok(ConnectOptions::Postgres(options)) => {
                let database = options.get_database().unwrap_or_else(|| options.get_username());
                format!("{}:{}/{database}", options.get_host(), options.get_port())
            }
            _ => self.url().to_owned(),
        }
    }

    /// Returns connection options, with an application name if the database supports one.
    ///
    /// # Errors
    /// [`OperateError`] for an unusable URL, or for a database that this build lacks.
    pub fn connect_options(&self, application_name: &str) -> Result<ConnectOptions, OperateError> {
        let invalid = |error| OperateError::from(LogError::from(error));
        Ok(match self.dialect()? {
            #[cfg(not(feature = "postgres"))]
            Dialect::Postgres => {
                let _ = application_name;
                return Err(without_postgres());
            }
            #[cfg(feature = "postgres")]
            Dialect::Postgres => {
                let options = postgres_options(self.url(), self.options.allow_plaintext).map_err(invalid)?;
                ConnectOptions::Postgres(options.application_name(application_name))
            }
            Dialect::Sqlite => ConnectOptions::Sqlite(sqlite_options(self.url()).map_err(invalid)?),
        })
    }

    /// Returns the dialect.
    ///
    /// # Errors
    /// [`OperateError`] for an unusable URL.
    pub fn dialect(&self) -> Result<Dialect, OperateError> {
        Database::check(self.url(), &self.options).map_err(|error| LogError::from(error).into())
    }
}

/// Opens something over one connection. Closes the connection on failure: dropping it would leave a
/// line in the server's log.
pub(super) async fn open_with<DB, T, E>(
    options: <DB::Connection as Connection>::Options,
    open: impl AsyncFnOnce(Pool<DB>) -> Result<T, E>,
) -> Result<T, E>
where
    DB: outbox::Dialect,
{
    let pool = outbox::own_pool_options::<DB>().max_connections(1).connect_lazy_with(options);
    let opened = open(pool.clone()).await;
    if opened.is_err() {
        pool.close().await;
    }
    opened
}

/// Returns the error for PostgreSQL in a program that was built without it.
#[cfg(not(feature = "postgres"))]
#[must_use]
pub fn without_postgres() -> OperateError {
    OperateError::refused(
        "this relay was built without PostgreSQL",
        "build the relay with its feature `postgres`",
    )
}
