//! Where an outbox is.

use std::path::Path;

use brokers::{InvalidSetting, Secret};
use migrations::{Dialect, Identifier};
use outbox::address::Address;
#[cfg(feature = "postgres")]
use outbox::connect::postgres_options;
use outbox::connect::{InvalidUrl, dialect_of, sqlite_options};
use outbox::log::LogOptions;
use secrecy::{ExposeSecret as _, SecretString};

/// Where an outbox is, and how its connections are made. `Debug` prints no secret.
#[derive(Debug, Clone)]
pub struct Database {
    url: Secret,
    options: LogOptions,
}

impl Database {
    /// A database at a URL or at the one that a file holds.
    #[must_use]
    pub fn new(url: Secret, options: LogOptions) -> Self {
        Self { url, options }
    }

    /// The address for connections: a file that holds the URL is read at each of them.
    #[must_use]
    pub fn address(&self) -> Address {
        let url = self.url.clone();
        Address::asked(move || match url.load("database.url") {
            Ok(url) => Ok(url.expose_secret().to_owned()),
            Err(error) => Err(error.to_string()),
        })
    }

    /// The URL. Reads the file that holds it, if one does.
    ///
    /// # Errors
    /// [`InvalidSetting`] names the file.
    pub fn url(&self) -> Result<SecretString, InvalidSetting> {
        self.url.load("database.url")
    }

    /// The file that holds the URL, if one does. It may be mounted later.
    #[must_use]
    pub fn url_file(&self) -> Option<&Path> {
        match &self.url {
            Secret::File(path) => Some(path),
            Secret::Text(_) => None,
        }
    }

    /// How connections are made.
    #[must_use]
    pub fn options(&self) -> &LogOptions {
        &self.options
    }

    /// The PostgreSQL schema of the tables, if one is given.
    #[must_use]
    pub fn schema(&self) -> Option<&Identifier> {
        self.options.schema.as_ref()
    }

    /// Checks a URL without connecting: which database it is for, and that nothing crosses a
    /// network in the clear unless that is allowed.
    ///
    /// # Errors
    /// [`InvalidUrl`], which never holds the URL itself.
    pub fn check(url: &str, options: &LogOptions) -> Result<Dialect, InvalidUrl> {
        let dialect = dialect_of(url)?;
        match dialect {
            // Without its client, opening it tells what is missing.
            #[cfg(not(feature = "postgres"))]
            Dialect::Postgres => {
                let _ = options;
            }
            #[cfg(feature = "postgres")]
            Dialect::Postgres => postgres_options(url, options.allow_plaintext).map(drop)?,
            Dialect::Sqlite => sqlite_options(url).map(drop)?,
        }
        Ok(dialect)
    }
}
