//! The database of tables besides the log: idempotency keys and sagas.

use migrations::Dialect;
#[cfg(feature = "postgres")]
use outbox::connect::postgres_options;
use outbox::connect::sqlite_options;
use outbox::log::{LogError, LogOptions};
use secrecy::{ExposeSecret as _, SecretString};
#[cfg(feature = "postgres")]
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, Pool};

use super::error::OperateError;
use crate::config::Database;

/// A database to work on.
pub(crate) struct Tables {
    url: SecretString,
    pub(crate) options: LogOptions,
}

/// How to connect, by dialect.
pub(crate) enum ConnectOptions {
    #[cfg(feature = "postgres")]
    Postgres(PgConnectOptions),
    Sqlite(SqliteConnectOptions),
}

impl Tables {
    /// The database at a URL.
    pub(crate) fn new(url: SecretString, options: LogOptions) -> Self {
        Self { url, options }
    }

    /// Where it is, with its password.
    pub(crate) fn url(&self) -> &str {
        self.url.expose_secret()
    }

    /// Which database it is, whoever connects to it; the URL itself where that cannot be told.
    #[cfg(feature = "page")]
    pub(crate) fn place(&self) -> String {
        match self.connect_options("") {
            #[cfg(feature = "postgres")]
            Ok(ConnectOptions::Postgres(options)) => {
                let database = options.get_database().unwrap_or_else(|| options.get_username());
                format!("{}:{}/{database}", options.get_host(), options.get_port())
            }
            _ => self.url().to_owned(),
        }
    }

    /// How to connect, under an application name where the database shows one.
    pub(crate) fn connect_options(&self, application_name: &str) -> Result<ConnectOptions, OperateError> {
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

    /// Returns the dialect; refuses a URL that cannot be used.
    pub(crate) fn dialect(&self) -> Result<Dialect, OperateError> {
        Database::check(self.url(), &self.options).map_err(|error| LogError::from(error).into())
    }
}

/// Opens something over one connection, which is closed where that fails: a connection that is only
/// dropped leaves a line in the server's log.
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

/// PostgreSQL is asked for, and this program was built without it.
#[cfg(not(feature = "postgres"))]
pub(crate) fn without_postgres() -> OperateError {
    OperateError::refused(
        "this relay was built without PostgreSQL",
        "build the relay with its feature `postgres`",
    )
}
