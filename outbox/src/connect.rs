//! Turns a URL into connection options.
//!
//! Payloads are business data, and the password gives access to the database. To other machines
//! both travel encrypted and to a verified server, unless the operator explicitly allows plaintext.

use migrations::Dialect;

pub use crate::failure::shared_session;

/// Re-exported for the log, which reports the same fault of a pooler.
#[doc(hidden)]
pub use crate::failure::SHARED_SESSIONS;

#[cfg(feature = "postgres")]
pub use crate::postgres::answering::{answering, needs_name};
#[cfg(feature = "postgres")]
pub use crate::postgres::hosts::{Hosts, NoPrimary, Passed, Primary, Unfit, place};
#[cfg(feature = "postgres")]
pub use crate::postgres::options::{Exposure, exposure, postgres_options};
#[cfg(feature = "postgres")]
pub use crate::postgres::session::{connect_own, set_own_defaults, stay_open};
/// Re-exported for the log, whose connections wait for the same time.
#[cfg(feature = "sqlite")]
#[doc(hidden)]
pub use crate::sqlite::options::BUSY_TIMEOUT;
#[cfg(feature = "sqlite")]
pub use crate::sqlite::options::{opened_when_free, sqlite_options};

/// A URL that cannot be used. The operator is at fault. The error never contains the URL, which may
/// contain a password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidUrl {
    /// The URL of another database.
    #[error(
        "the URL {}; use postgres://user@host/database or sqlite:file.db",
        beginning(.scheme)
    )]
    Scheme {
        /// The text before the colon.
        scheme: String,
    },
    /// The rest of the URL is wrong.
    #[error("the {dialect} URL cannot be read: {problem}")]
    Malformed {
        /// The database that the URL is for.
        dialect: Dialect,
        /// The client library's message.
        problem: String,
    },
    /// A character in a user, a password or a database name is not escaped, or a part is missing.
    /// Part of the password would be read as a host or a database name.
    #[error(
        "the URL is not of the form postgres://user:password@host:port/database: {problem}; write @ / # ? : in a user, \
         a password or a name as %40 %2F %23 %3F %3A"
    )]
    Form {
        /// The deviation from the form, without any part of the URL.
        problem: &'static str,
    },
    /// A list of hosts cannot be used.
    #[error("the hosts of the URL cannot be used: {problem}")]
    Hosts {
        /// The problem, without any part of the URL.
        problem: String,
    },
    /// A parameter that cannot be honoured. The error omits its value, which may be a secret.
    #[error("the URL has a parameter {name} that is not supported; {remedy}")]
    Parameter {
        /// The parameter's name, in quotes.
        name: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// Passwords and payloads would cross a network unencrypted, or reach an unverified server.
    #[error(
        "the connection to {host} with sslmode={mode} may go over the network unencrypted; set sslmode=verify-full \
         (or verify-ca, require) in the URL, or sslmode=disable and allow plaintext explicitly"
    )]
    Plaintext {
        /// The host.
        host: String,
        /// The mode as configured.
        mode: &'static str,
    },
}

/// Describes the beginning of a URL. The text may be a secret, so only a scheme is repeated.
fn beginning(scheme: &str) -> String {
    match scheme.trim_start().chars().next() {
        None => String::from("has no : after a scheme; if it is base64, decode it"),
        Some('"' | '\'') => String::from("is in quotes, which belong to it here: remove them"),
        Some(_) => format!("begins with {scheme:?}"),
    }
}

/// Returns the kind of database that a URL is for.
///
/// # Errors
/// [`InvalidUrl::Scheme`] for any other database.
pub fn dialect_of(url: &str) -> Result<Dialect, InvalidUrl> {
    match url.split_once(':').map_or("", |(scheme, _)| scheme) {
        "postgres" | "postgresql" => Ok(Dialect::Postgres),
        "sqlite" => Ok(Dialect::Sqlite),
        scheme => Err(InvalidUrl::Scheme { scheme: scheme.chars().take(32).collect() }),
    }
}
