//! The database of tables other than the log: idempotency keys and sagas.

#[cfg(feature = "postgres")]
use std::path::{Path, PathBuf};
use std::time::Duration;

use brokers::InvalidSetting;
use migrations::Dialect;
use outbox::connect::sqlite_options;
#[cfg(feature = "postgres")]
use outbox::connect::{answering, postgres_options};
#[cfg(feature = "postgres")]
use outbox_log::in_time;
use outbox_log::{Address, LogError, LogOptions};
use secrecy::{ExposeSecret as _, SecretString};
#[cfg(feature = "postgres")]
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, Pool};

use super::error::OperateError;
use super::redact;
use crate::settings::Database;

/// A database with such tables.
pub struct Tables {
    known: Known,
    /// The options of connections.
    pub options: LogOptions,
}

enum Known {
    Url(SecretString),
    Lent(Address),
}

/// The options of a connection, by dialect.
pub enum ConnectOptions {
    /// A connection to PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres(PgConnectOptions),
    /// A connection to SQLite.
    Sqlite(SqliteConnectOptions),
}

impl Tables {
    /// Creates it from a URL.
    #[must_use]
    pub fn new(url: SecretString, options: LogOptions) -> Self {
        Self { known: Known::Url(url), options }
    }

    /// Creates it from the database of an outbox. Reads the file with the URL, if there is one.
    ///
    /// # Errors
    /// [`InvalidSetting`] names the file.
    pub fn of(database: &Database) -> Result<Self, InvalidSetting> {
        let options = database.options().clone();
        Ok(match database.lent_address() {
            Some(address) => Self::lent(address.clone(), options),
            None => Self::new(database.url()?, options),
        })
    }

    /// Creates it from the address that a service lends, such as a pool.
    #[must_use]
    pub fn lent(address: Address, options: LogOptions) -> Self {
        Self { known: Known::Lent(address), options }
    }

    /// Returns the URL, including its password; empty for a database that a service lent.
    #[must_use]
    pub fn url(&self) -> &str {
        match &self.known {
            Known::Url(url) => url.expose_secret(),
            Known::Lent(_) => "",
        }
    }

    /// Returns server, port and name of the database, without the user: the same text for every URL
    /// of one database. For SQLite, returns the file; for an unusable URL, the URL without secrets.
    #[must_use]
    pub fn place(&self) -> String {
        match self.connect_options("") {
            #[cfg(feature = "postgres")]
            Ok(ConnectOptions::Postgres(options)) => {
                let database = options.get_database().unwrap_or_else(|| options.get_username());
                format!("{}:{}/{database}", server(&options), options.get_port())
            }
            Ok(ConnectOptions::Sqlite(options)) => options.get_filename().display().to_string(),
            Err(error) => match &self.known {
                Known::Url(url) => redact::url(url.expose_secret()),
                Known::Lent(_) => error.to_string(),
            },
        }
    }

    /// Returns [`Tables::place`] with the schema of the tables, if one is configured.
    #[must_use]
    pub fn location(&self) -> String {
        match &self.options.schema {
            Some(schema) => format!("{}, schema {schema}", self.place()),
            None => self.place(),
        }
    }

    /// Returns connection options, with an application name if the database supports one.
    ///
    /// # Errors
    /// [`OperateError`] for an unusable URL, or for a database that this build lacks.
    pub fn connect_options(&self, application_name: &str) -> Result<ConnectOptions, OperateError> {
        Ok(match self.dialect()? {
            #[cfg(not(feature = "postgres"))]
            Dialect::Postgres => {
                let _ = application_name;
                return Err(without_postgres());
            }
            #[cfg(feature = "postgres")]
            Dialect::Postgres => {
                let allow_plaintext = self.options.allow_plaintext;
                let options = match &self.known {
                    Known::Url(url) => postgres_options(url.expose_secret(), allow_plaintext)
                        .map_err(|error| OperateError::from(LogError::from(error)))?,
                    Known::Lent(address) => address.postgres(allow_plaintext)?,
                };
                ConnectOptions::Postgres(options.application_name(application_name))
            }
            Dialect::Sqlite => ConnectOptions::Sqlite(match &self.known {
                Known::Url(url) => sqlite_options(url.expose_secret())
                    .map_err(|error| OperateError::from(LogError::from(error)))?,
                Known::Lent(address) => address.sqlite()?,
            }),
        })
    }

    /// Returns the dialect.
    ///
    /// # Errors
    /// [`OperateError`] for an unusable URL.
    pub fn dialect(&self) -> Result<Dialect, OperateError> {
        match &self.known {
            Known::Url(url) => Database::check(url.expose_secret(), &self.options)
                .map_err(|error| LogError::from(error).into()),
            Known::Lent(address) => Ok(address.dialect()?),
        }
    }
}

/// Returns the directory of the Unix socket, or the host if there is none. With a socket, the
/// options also have a host, which is not used.
#[cfg(feature = "postgres")]
fn server(options: &PgConnectOptions) -> String {
    let host = options.get_host();
    let socket = options.get_socket().map(PathBuf::as_path);
    match socket.or_else(|| host.starts_with('/').then_some(Path::new(host))) {
        // Collecting the components removes repeated and trailing separators.
        Some(directory) => directory.components().collect::<PathBuf>().display().to_string(),
        None => host.to_owned(),
    }
}

/// Timeout for connecting.
#[cfg(feature = "postgres")]
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the options with the address of the server that answers, if its name has several: a pool
/// would wait for the first one.
#[cfg(feature = "postgres")]
pub(super) async fn reached(options: &PgConnectOptions) -> Result<PgConnectOptions, OperateError> {
    Ok(in_time(CONNECT_TIMEOUT, answering(options)).await?)
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
    let pool = outbox::own_pool_options::<DB>().max_connections(1).acquire_timeout(ACQUIRE_MAX);
    let pool = pool.connect_lazy_with(options);
    let opened = open(pool.clone()).await;
    if opened.is_err() {
        close(&pool).await;
    }
    opened
}

/// Maximum time that the pool waits for its connection: longer than any call, so that the limit of
/// the call ends the wait, because its error is clearer.
const ACQUIRE_MAX: Duration = Duration::from_secs(60);

/// Maximum time to close a connection: with TLS, the client library waits for the server.
pub(super) const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Closes a pool, so that the server logs no lost connection.
pub(super) async fn close<DB: sqlx::Database>(pool: &Pool<DB>) {
    // A failure to close has no consequence.
    let _ = tokio::time::timeout(CLOSE_MAX, pool.close()).await;
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

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use super::*;

    fn place(url: &str) -> String {
        Tables::new(url.into(), LogOptions::default()).place()
    }

    /// Covers every form of a Unix socket that sqlx accepts: a parameter, an encoded host, and a
    /// directory with repeated separators.
    #[test]
    fn a_database_behind_a_socket_is_known_by_the_directory() {
        let orders = place("postgres:///app?host=/cloudsql/p:eu:orders");
        assert_eq!(orders, "/cloudsql/p:eu:orders:5432/app");
        for same in [
            "postgres://%2Fcloudsql%2Fp%3Aeu%3Aorders/app",
            "postgres://relay:secret@%2Fcloudsql%2Fp%3Aeu%3Aorders/app",
            "postgres:///app?host=/cloudsql/p:eu:orders/&user=bills",
            "postgres://localhost/app?host=%2Fcloudsql%2Fp:eu:orders",
            "postgres:///?host=//cloudsql//p:eu:orders&dbname=app&port=5432",
            "postgres:///app?host=/cloudsql/p:eu:orders&host=elsewhere",
        ] {
            assert_eq!(place(same), orders, "{same}");
        }
        for other in [
            "postgres:///app?host=/cloudsql/p:eu:bills",
            "postgres://%2Fcloudsql%2Fp%3Aeu%3Abills/app",
            "postgres:///app?host=/cloudsql/p:eu:orders&port=5433",
            "postgres:///bills?host=/cloudsql/p:eu:orders",
            "postgres://localhost/app",
        ] {
            assert_ne!(place(other), orders, "{other}");
        }
    }

    #[test]
    fn a_place_shows_no_secret() {
        assert_eq!(place("postgres://ann:secret@localhost:7/app?sslmode=disable"), "localhost:7/app");
        let broken = place("postgres://ann:secret@h1,h2/app");
        assert!(!broken.contains("secret") && broken.contains("h1,h2"), "{broken}");
    }

    #[test]
    fn two_schemas_of_a_database_are_two_locations() {
        let location = |schema: Option<&str>| {
            let schema = schema.map(|schema| migrations::Identifier::new(schema).unwrap());
            Tables::new("postgres://localhost:7/app".into(), LogOptions::default().schema(schema)).location()
        };
        assert_eq!(location(None), "localhost:7/app");
        assert_eq!(location(Some("bills")), "localhost:7/app, schema bills");
    }

    #[test]
    fn files_of_sqlite_are_told_apart() {
        assert_ne!(place("sqlite:/data/a@b.db"), place("sqlite:/logs/a@b.db"));
    }
}
