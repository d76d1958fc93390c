//! The database of tables other than the log (inboxes, idempotency keys and sagas), and the way to
//! open something over it.

#[cfg(feature = "postgres")]
use std::path::{Path, PathBuf};
use std::time::Duration;

use brokers::InvalidSetting;
use migrations::{Dialect, Identifier};
use outbox::connect::sqlite_options;
#[cfg(feature = "postgres")]
use outbox::connect::{Hosts, Primary};
use outbox_log::{Address, LogError, LogOptions};
#[cfg(feature = "postgres")]
use outbox_log::{in_time, postgres::unconnected};
use secrecy::{ExposeSecret as _, SecretString};
#[cfg(feature = "postgres")]
pub(crate) use sqlx::Postgres;
/// Stands for PostgreSQL in a program without it, which never opens one.
#[cfg(not(feature = "postgres"))]
pub(crate) use sqlx::Sqlite as Postgres;
#[cfg(feature = "postgres")]
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, Pool, Sqlite};

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

/// Something that exists for each database, such as the options of a connection. A program without
/// PostgreSQL never creates its variant.
pub enum On<P, S> {
    /// In PostgreSQL.
    Postgres(P),
    /// In SQLite.
    Sqlite(S),
}

/// Evaluates the same expression for either database.
macro_rules! on {
    ($on:expr, $it:ident => $body:expr) => {
        match $on {
            $crate::tables::On::Postgres($it) => $body,
            $crate::tables::On::Sqlite($it) => $body,
        }
    };
}
pub(crate) use on;

/// Where connections are made to: the hosts of a PostgreSQL database.
#[cfg(feature = "postgres")]
pub type ConnectOptions = On<Hosts, SqliteConnectOptions>;
/// Where connections are made to.
#[cfg(not(feature = "postgres"))]
pub type ConnectOptions = On<SqliteConnectOptions, SqliteConnectOptions>;
type OptionsOf<DB> = <<DB as sqlx::Database>::Connection as Connection>::Options;

/// Something that was opened over one connection to a database, such as its sagas.
pub struct Opened<P, S> {
    pub(crate) on: On<P, S>,
    /// Its location, without secrets.
    location: String,
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
            Ok(options) => on!(options, options => options.address()),
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

    /// Returns the user of the connections, quoted for a statement where that is necessary; `None`
    /// for SQLite, and for an unusable URL.
    #[must_use]
    pub fn user(&self) -> Option<String> {
        let options = self.connect_options("").ok()?;
        on!(options, options => options.user())
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
                let hosts = match &self.known {
                    Known::Url(url) => Hosts::of(url.expose_secret(), allow_plaintext)
                        .map_err(|error| OperateError::from(LogError::from(error)))?,
                    Known::Lent(address) => address.postgres(allow_plaintext)?,
                };
                On::Postgres(hosts.application_name(application_name))
            }
            Dialect::Sqlite => {
                let options = match &self.known {
                    Known::Url(url) => sqlite_options(url.expose_secret())
                        .map_err(|error| OperateError::from(LogError::from(error)))?,
                    Known::Lent(address) => address.sqlite()?,
                };
                // Erased content is overwritten in the file, not only unlinked.
                On::Sqlite(options.pragma("secure_delete", "ON"))
            }
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

    /// Opens something over one connection, by one generic function for both databases. Connects to
    /// PostgreSQL once before: a pool would retry while a server is unreachable.
    pub(crate) async fn open<P, S>(
        &self,
        application_name: &str,
        postgres: impl AsyncFnOnce(Pool<Postgres>, Option<Identifier>) -> Result<P, OperateError>,
        sqlite: impl AsyncFnOnce(Pool<Sqlite>, Option<Identifier>) -> Result<S, OperateError>,
    ) -> Result<Opened<P, S>, OperateError> {
        let location = self.location();
        let schema = self.options.schema.clone();
        let opened: Result<_, OperateError> = async {
            Ok(match self.connect_options(application_name)? {
                On::Postgres(options) => {
                    let options = options.answered().await?;
                    On::Postgres(open_with(options, async |pool| postgres(pool, schema).await).await?)
                }
                On::Sqlite(options) => {
                    On::Sqlite(open_with(options, async |pool| sqlite(pool, schema).await).await?)
                }
            })
        }
        .await;
        match opened {
            Ok(on) => Ok(Opened { on, location }),
            Err(error) => Err(error.of_place(location)),
        }
    }
}

impl<P, S> Opened<P, S> {
    /// Returns the answer of a call, or the error with the location.
    pub(crate) fn answer<T>(&self, answer: Result<T, impl Into<OperateError>>) -> Result<T, OperateError> {
        answer.map_err(|error| error.into().of_place(&self.location))
    }
}

/// The place of a database, its user, and whether it answers.
trait Reach: Sized {
    /// The options of a connection.
    type Options;

    /// Returns server, port and name of the database, or the file.
    fn address(&self) -> String;

    /// Returns the user, as a statement names it, if the database has users.
    fn user(&self) -> Option<String>;

    /// Returns options with the address of the primary that answers: a pool would wait for the
    /// first host and the first address of its name.
    async fn answered(self) -> Result<Self::Options, OperateError>;
}

impl Reach for SqliteConnectOptions {
    type Options = Self;

    fn address(&self) -> String {
        self.get_filename().display().to_string()
    }

    fn user(&self) -> Option<String> {
        None
    }

    async fn answered(self) -> Result<Self, OperateError> {
        Ok(self)
    }
}

#[cfg(feature = "postgres")]
impl Reach for Hosts {
    type Options = PgConnectOptions;

    fn address(&self) -> String {
        let first = self.first();
        let database = first.get_database().unwrap_or_else(|| first.get_username());
        let servers = self.all().iter().map(|host| format!("{}:{}", server(host), host.get_port()));
        // The order of the hosts says where to begin, and does not identify the database.
        let mut servers: Vec<_> = servers.collect();
        servers.sort_unstable();
        format!("{}/{database}", servers.join(","))
    }

    fn user(&self) -> Option<String> {
        Some(named_role(self.first().get_username()))
    }

    async fn answered(self) -> Result<PgConnectOptions, OperateError> {
        let found = in_time(CONNECT_TIMEOUT, self.primary()).await?;
        let Primary { connection, options } = found.map_err(unconnected)?;
        // A failure to close has no consequence.
        let _ = in_time(CLOSE_MAX, connection.close()).await;
        Ok(options)
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

/// Quotes a role for a statement where that is necessary.
pub(crate) fn named_role(role: &str) -> String {
    let is_plain = role.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && !role.starts_with(|c: char| c.is_ascii_digit());
    if is_plain { role.to_owned() } else { format!("\"{}\"", role.replace('"', "\"\"")) }
}

/// Timeout for connecting.
#[cfg(feature = "postgres")]
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens something over one connection. Closes the connection on failure: dropping it would leave a
/// line in the server's log.
async fn open_with<DB: outbox::Dialect, T>(
    options: OptionsOf<DB>,
    open: impl AsyncFnOnce(Pool<DB>) -> Result<T, OperateError>,
) -> Result<T, OperateError> {
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
const CLOSE_MAX: Duration = Duration::from_secs(5);

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
        assert_eq!(place("postgres://ann:secret@h1,h2:7/app"), "h1:5432,h2:7/app");
        assert_eq!(place("postgres://bob@h2:7,h1/app"), "h1:5432,h2:7/app", "the same database");
        let broken = place("postgres://ann:secret@h1,,h2/app");
        assert!(!broken.contains("secret") && broken.contains("h1,,h2"), "{broken}");
    }

    /// Goal: a grant is for the user that lacks the right, and is a statement as it is shown.
    /// Oracle: the user of each kind of URL; no part of the secret.
    #[test]
    fn the_user_of_a_database_is_named_as_a_statement_needs_it() {
        let user = |url: &str| Tables::new(url.into(), LogOptions::default()).user();
        for (url, named) in [
            ("postgres://billing_ops:secret@db2:7/billing", Some("billing_ops")),
            ("postgres://db2/billing?user=billing_ops", Some("billing_ops")),
            ("postgres://billing-ops@h1,h2/billing", Some("\"billing-ops\"")),
            ("sqlite:/data/orders.db", None),
        ] {
            assert_eq!(user(url).as_deref(), named, "{url}");
        }
    }

    #[test]
    fn two_schemas_of_a_database_are_two_locations() {
        let location = |schema: Option<&str>| {
            let schema = schema.map(|schema| Identifier::new(schema).unwrap());
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
