//! The location of an outbox.

use std::path::Path;

use brokers::{InvalidSetting, Secret};
use migrations::{Dialect, Identifier};
#[cfg(feature = "postgres")]
use outbox::connect::Hosts;
use outbox::connect::{InvalidUrl, dialect_of, sqlite_options};
use outbox_log::Address;
use outbox_log::LogOptions;
use secrecy::{ExposeSecret as _, SecretString};

/// The words for the place of a URL, in the remedies of errors about connecting.
const URL_OR_FILE: &str = "the URL or its file";

/// The location of an outbox, and the options of its connections. `Debug` prints no secret.
#[derive(Debug, Clone)]
pub struct Database {
    known: Known,
    options: LogOptions,
}

#[derive(Debug, Clone)]
enum Known {
    Url(Secret),
    Lent(Address),
}

impl Database {
    /// Creates a database from a URL, or from a file that holds it.
    #[must_use]
    pub fn new(url: Secret, options: LogOptions) -> Self {
        Self { known: Known::Url(url), options }
    }

    /// Creates a database from the address that a service gave to its relay, such as a pool. It has
    /// no URL, so commands that need one refuse it.
    #[must_use]
    pub fn lent(address: Address, options: LogOptions) -> Self {
        Self { known: Known::Lent(address), options }
    }

    /// Returns the address for connections. A file with the URL is read again at each connection.
    #[must_use]
    pub fn address(&self) -> Address {
        let url = match &self.known {
            Known::Url(url) => url.clone(),
            Known::Lent(address) => return address.clone(),
        };
        Address::asked(move || match url.load("database.url") {
            Ok(url) => Ok(url.expose_secret().to_owned()),
            Err(error) => Err(error.to_string()),
        })
    }

    /// Returns the URL. Reads the file that holds it, if there is one.
    ///
    /// # Errors
    /// [`InvalidSetting`] names the file, or reports that a service lent its database.
    pub fn url(&self) -> Result<SecretString, InvalidSetting> {
        match &self.known {
            Known::Url(url) => url.load("database.url"),
            Known::Lent(_) => Err(InvalidSetting {
                setting: String::from("database.url"),
                problem: String::from(
                    "is unknown, because a service provides the database connections; \
                                       give its URL",
                ),
            }),
        }
    }

    /// Returns the address that a service lent, if it did.
    #[must_use]
    pub fn lent_address(&self) -> Option<&Address> {
        match &self.known {
            Known::Url(_) => None,
            Known::Lent(address) => Some(address),
        }
    }

    /// Returns the file that holds the URL, if there is one. It may be mounted later.
    #[must_use]
    pub fn url_file(&self) -> Option<&Path> {
        match &self.known {
            Known::Url(Secret::File(path)) => Some(path),
            Known::Url(Secret::Text(_)) | Known::Lent(_) => None,
        }
    }

    /// Returns a text about connecting that names the place where the URL is configured: the file
    /// that holds it, or the setting. A driver of the database knows neither.
    #[must_use]
    pub(crate) fn named(&self, text: &str) -> String {
        let place = match &self.known {
            Known::Url(Secret::File(path)) => format!("the URL in {}", path.display()),
            Known::Url(Secret::Text(_)) => String::from("database.url"),
            Known::Lent(_) => return text.to_owned(),
        };
        text.replace(URL_OR_FILE, &place)
    }

    /// Returns the options of connections.
    #[must_use]
    pub fn options(&self) -> &LogOptions {
        &self.options
    }

    /// Returns the PostgreSQL schema of the tables, if one is given.
    #[must_use]
    pub fn schema(&self) -> Option<&Identifier> {
        self.options.schema.as_ref()
    }

    /// Checks a URL without connecting: its dialect, and that nothing crosses a network unencrypted
    /// unless that is allowed.
    ///
    /// # Errors
    /// [`InvalidUrl`], which never holds the URL itself.
    pub fn check(url: &str, options: &LogOptions) -> Result<Dialect, InvalidUrl> {
        let dialect = dialect_of(url)?;
        match dialect {
            // In a build without its client, opening it reports what is missing.
            #[cfg(not(feature = "postgres"))]
            Dialect::Postgres => {
                let _ = options;
            }
            #[cfg(feature = "postgres")]
            Dialect::Postgres => Hosts::of(url, options.allow_plaintext).map(drop)?,
            Dialect::Sqlite => sqlite_options(url).map(drop)?,
        }
        Ok(dialect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: whoever has to replace a password reads where it is. Oracle: the remedy, for a URL in
    /// a file, in the configuration, and of a service.
    #[test]
    fn the_place_of_a_wrong_password_is_named() {
        let remedy = "write the correct password into the URL or its file, or set this one with ALTER ROLE";
        let of = |secret| Database::new(secret, LogOptions::default()).named(remedy);
        let file = of(Secret::File("/run/secrets/shipping-url".into()));
        assert!(file.contains("password into the URL in /run/secrets/shipping-url, or set"), "{file}");
        let text = of(Secret::Text("postgres://localhost/shop".into()));
        assert!(text.contains("into database.url, or") && !text.contains("localhost"), "{text}");
        let lent = Database::lent(Address::asked(|| Err(String::new())), LogOptions::default());
        assert_eq!(lent.named(remedy), remedy);
    }
}
