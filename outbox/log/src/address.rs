//! The address of a database.

use std::fmt;
use std::sync::Arc;

use migrations::Dialect;
#[cfg(feature = "postgres")]
use outbox::connect::Hosts;
use outbox::connect::dialect_of;
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgConnectOptions, PgPool};
#[cfg(feature = "sqlite")]
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

use crate::LogError;

/// The address of a database: a URL, a function that returns the URL at each connect (such as a
/// mounted secret that is rotated), or a pool.
///
/// Only the connect options of a pool are used. They are read at each connect, so passwords may be
/// rotated. The toolkit uses none of the pool's connections, so it leaves no settings on them. It
/// runs none of the pool's hooks: a `search_path` that `after_connect` sets must also be set in
/// [`LogOptions::schema`](crate::LogOptions::schema). The pool's owner chooses how it reaches the
/// server: without TLS there is a warning, not an error.
///
/// `Debug` prints no URL, because it may hold a password.
#[derive(Clone)]
pub struct Address(Known);

#[derive(Clone)]
enum Known {
    Fixed(Arc<str>),
    Asked(Arc<dyn Fn() -> Result<String, String> + Send + Sync>),
    #[cfg(feature = "postgres")]
    Postgres(PgPool),
    #[cfg(feature = "sqlite")]
    Sqlite(SqlitePool),
}

impl Address {
    /// Makes an address whose URL `ask` returns at every connect. `ask` may read a local file. Its
    /// error is shown to the operator and must not contain the secret.
    pub fn asked(ask: impl Fn() -> Result<String, String> + Send + Sync + 'static) -> Self {
        Self(Known::Asked(Arc::new(ask)))
    }

    /// Returns the kind of database.
    ///
    /// # Errors
    /// [`LogError::Operator`] for a URL that `ask` could not return, or that is not one of
    /// PostgreSQL or SQLite.
    pub fn dialect(&self) -> Result<Dialect, LogError> {
        Ok(match &self.0 {
            #[cfg(feature = "postgres")]
            Known::Postgres(_) => Dialect::Postgres,
            #[cfg(feature = "sqlite")]
            Known::Sqlite(_) => Dialect::Sqlite,
            _ => dialect_of(&self.url()?)?,
        })
    }

    /// Returns the hosts of a PostgreSQL database. They may differ at the next call. Those of a
    /// pool are the one to which the pool connects now.
    ///
    /// # Errors
    /// [`LogError::Operator`] for an address that is not one of PostgreSQL, and for a URL that
    /// would send secrets in the clear unless `allow_plaintext` is set.
    #[cfg(feature = "postgres")]
    pub fn postgres(&self, allow_plaintext: bool) -> Result<Hosts, LogError> {
        match &self.0 {
            Known::Postgres(pool) => {
                let options = PgConnectOptions::clone(&pool.connect_options());
                Ok(Hosts::from(options.extra_float_digits(None)))
            }
            _ => Ok(Hosts::of(&self.url()?, allow_plaintext)?),
        }
    }

    /// Returns whether it is a pool of the service, which connects as the service's user.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_pool(&self) -> bool {
        matches!(self.0, Known::Postgres(_))
    }

    /// Returns the options for a connection to SQLite.
    ///
    /// # Errors
    /// [`LogError::Operator`] for an address that is not one of SQLite, and for a database in
    /// memory.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(&self) -> Result<SqliteConnectOptions, LogError> {
        match &self.0 {
            Known::Sqlite(pool) => {
                let options = SqliteConnectOptions::clone(&pool.connect_options());
                Ok(crate::sqlite::options::of_pool(options))
            }
            _ => {
                let url = self.url()?;
                if url.contains("mode=memory") {
                    Err(crate::sqlite::options::in_memory())
                } else {
                    Ok(outbox::connect::sqlite_options(&url)?)
                }
            }
        }
    }

    fn url(&self) -> Result<String, LogError> {
        match &self.0 {
            Known::Fixed(url) => Ok(url.as_ref().to_owned()),
            Known::Asked(ask) => ask().map_err(LogError::operator),
            #[cfg(feature = "postgres")]
            Known::Postgres(_) => {
                Err(LogError::operator("this pool connects to PostgreSQL, but the log needs SQLite"))
            }
            #[cfg(feature = "sqlite")]
            Known::Sqlite(_) => {
                Err(LogError::operator("this pool connects to SQLite, but the log needs PostgreSQL"))
            }
        }
    }
}

impl From<&str> for Address {
    fn from(url: &str) -> Self {
        Self(Known::Fixed(Arc::from(url)))
    }
}

impl From<&String> for Address {
    fn from(url: &String) -> Self {
        Self::from(url.as_str())
    }
}

#[cfg(feature = "postgres")]
impl From<&PgPool> for Address {
    fn from(pool: &PgPool) -> Self {
        Self(Known::Postgres(pool.clone()))
    }
}

#[cfg(feature = "sqlite")]
impl From<&SqlitePool> for Address {
    fn from(pool: &SqlitePool) -> Self {
        Self(Known::Sqlite(pool.clone()))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Known::Fixed(_) => "Address(fixed)",
            Known::Asked(_) => "Address(asked)",
            #[cfg(feature = "postgres")]
            Known::Postgres(_) => "Address(pool of PostgreSQL)",
            #[cfg(feature = "sqlite")]
            Known::Sqlite(_) => "Address(pool of SQLite)",
        })
    }
}
