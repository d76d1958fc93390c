//! From a URL to connection options.
//!
//! Message payloads are business data and the password opens the database: outside this machine
//! they travel encrypted and to the right server, or the operator has said otherwise.

use migrations::Dialect;

pub use crate::failure::shared_session;

#[cfg(feature = "postgres")]
pub use crate::postgres::options::{Exposure, exposure, postgres_options};
#[cfg(feature = "postgres")]
pub use crate::postgres::session::{connect_own, set_own_defaults};
#[cfg(feature = "postgres")]
pub use crate::postgres::unconnected::unconnected;
#[cfg(feature = "sqlite")]
pub use crate::sqlite::options::{opened_when_free, sqlite_options};

/// A URL that cannot be used. The operator's fault; never holds the URL itself, which may carry a
/// password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidUrl {
    /// Another database's URL.
    #[error("the URL begins with {scheme:?}; use postgres://user@host/database or sqlite:file.db")]
    Scheme {
        /// The text before the colon.
        scheme: String,
    },
    /// The rest of the URL is wrong.
    #[error("the {dialect} URL cannot be read: {problem}")]
    Malformed {
        /// Which database's.
        dialect: Dialect,
        /// The client library's message.
        problem: String,
    },
    /// A character of a user, a password or a database name is not escaped, or a part is missing,
    /// so that a password would be taken for a host or a database name.
    #[error(
        "the URL is not of the form postgres://user:password@host:port/database: {problem}; write @ / # ? : in a user, \
         a password or a name as %40 %2F %23 %3F %3A"
    )]
    Form {
        /// The departure from the form, without any part of the URL.
        problem: &'static str,
    },
    /// Several servers are named.
    #[error(
        "the URL names several hosts; name one, that always leads to the primary: a proxy, a virtual address or the \
         writer's DNS name"
    )]
    Hosts,
    /// A parameter that cannot be honoured. Its value, which may be a secret, is left out.
    #[error("the URL has a parameter {name} that cannot be honoured; {remedy}")]
    Parameter {
        /// Its name, in quotes.
        name: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// Passwords and payloads would cross a network in the clear, or reach a server nobody has
    /// verified.
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

/// Which database a URL is for.
///
/// # Errors
/// [`InvalidUrl::Scheme`] for any other.
pub fn dialect_of(url: &str) -> Result<Dialect, InvalidUrl> {
    match url.split_once(':').map_or("", |(scheme, _)| scheme) {
        "postgres" | "postgresql" => Ok(Dialect::Postgres),
        "sqlite" => Ok(Dialect::Sqlite),
        scheme => Err(InvalidUrl::Scheme { scheme: scheme.chars().take(32).collect() }),
    }
}
