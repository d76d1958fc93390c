//! Turns a URL into connection options.

use std::str::FromStr;

use message::loopback::is_loopback;
use migrations::Dialect;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use crate::connect::{InvalidUrl, dialect_of};
use crate::postgres::url::accepted;

/// The protection that a connection to a server lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposure {
    /// All protection: nothing is encrypted.
    Plaintext,
    /// Anyone on the path can pose as the server.
    Unverified,
}

/// Returns PostgreSQL options from a URL. `sslmode` in the URL is honoured. Without it, a server on
/// another machine must prove its identity (`verify-full`), even where plaintext is allowed. Beyond
/// loopback addresses and Unix sockets, plaintext must be requested twice, with `sslmode=disable`
/// and `allow_plaintext`; modes that may fall back to it are refused. Parameters that cannot be
/// honoured are refused with an error that names them, and so are lists of hosts.
///
/// # Errors
/// [`InvalidUrl`].
pub fn postgres_options(url: &str, allow_plaintext: bool) -> Result<PgConnectOptions, InvalidUrl> {
    if dialect_of(url)? != Dialect::Postgres {
        return Err(InvalidUrl::Scheme { scheme: String::from("sqlite") });
    }
    let url = accepted(url)?;
    let options = PgConnectOptions::from_str(&url)
        .map_err(|error| unread(&error))?
        // A pooler with default settings does not know this startup parameter, and the server's
        // default has been exact since version 12.
        .extra_float_digits(None);
    let host = options.get_host().to_owned();
    // A URL has an IPv6 address in brackets. The client library would resolve it as a host name.
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let options = match address {
        Some(address) => options.host(address),
        None => options,
    };
    if is_local(&options) {
        return Ok(options);
    }
    let chosen =
        url.contains("sslmode=") || url.contains("ssl-mode=") || std::env::var_os("PGSSLMODE").is_some();
    match options.get_ssl_mode() {
        PgSslMode::Prefer if !chosen => Ok(options.ssl_mode(PgSslMode::VerifyFull)),
        PgSslMode::Disable if allow_plaintext => Ok(options),
        PgSslMode::Disable => Err(InvalidUrl::Plaintext { host, mode: "disable" }),
        PgSslMode::Allow => Err(InvalidUrl::Plaintext { host, mode: "allow" }),
        PgSslMode::Prefer => Err(InvalidUrl::Plaintext { host, mode: "prefer" }),
        PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull => Ok(options),
    }
}

/// Returns the refusal of a URL that the client library cannot parse.
fn unread(error: &sqlx::Error) -> InvalidUrl {
    let problem = error.to_string();
    if problem.contains("invalid port number") {
        // Reached for a password that contains a `/`.
        InvalidUrl::Form { problem: "the port is not a number from 1 to 65535" }
    } else {
        InvalidUrl::Malformed { dialect: Dialect::Postgres, problem }
    }
}

/// Returns the protection that a connection with these options lacks, if any.
#[must_use]
pub fn exposure(options: &PgConnectOptions) -> Option<Exposure> {
    match options.get_ssl_mode() {
        _ if is_local(options) => None,
        PgSslMode::Disable | PgSslMode::Allow | PgSslMode::Prefer => Some(Exposure::Plaintext),
        PgSslMode::Require => Some(Exposure::Unverified),
        PgSslMode::VerifyCa | PgSslMode::VerifyFull => None,
    }
}

fn is_local(options: &PgConnectOptions) -> bool {
    let host = options.get_host();
    options.get_socket().is_some() || host.starts_with('/') || is_loopback(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plaintext_stays_on_this_machine() {
        for url in ["postgres://u@127.0.0.1/d", "postgres://u@localhost/d", "postgres://u@[::1]/d"] {
            assert!(postgres_options(url, false).is_ok(), "{url}");
        }
        let remote = "postgres://u:secret@db.example.com/d";
        let options = postgres_options(remote, false).unwrap();
        assert!(matches!(options.get_ssl_mode(), PgSslMode::VerifyFull));
        let error = postgres_options(&format!("{remote}?sslmode=prefer"), false).unwrap_err().to_string();
        assert!(error.contains("db.example.com") && error.contains("verify-full"), "{error}");
        assert!(!error.contains("secret"), "{error}");
        assert!(postgres_options(&format!("{remote}?sslmode=disable"), false).is_err());
        let options = postgres_options(&format!("{remote}?sslmode=disable"), true).unwrap();
        assert_eq!(exposure(&options), Some(Exposure::Plaintext));
    }

    #[test]
    fn an_ipv6_address_is_reached_without_its_brackets() {
        for url in ["postgres://u:p@[::1]:5432/d", "postgres://u:p@[::1]:5432/d?sslmode=disable"] {
            let options = postgres_options(url, false).unwrap();
            assert_eq!(options.get_host(), "::1", "{url}");
            assert_eq!(options.get_port(), 5432, "{url}");
        }
        let options = postgres_options("postgres://u:p@[2001:db8::7]:6432/d", false).unwrap();
        assert_eq!((options.get_host(), options.get_port()), ("2001:db8::7", 6432));
        assert!(matches!(options.get_ssl_mode(), PgSslMode::VerifyFull));
        let error = postgres_options("postgres://u:p@[2001:db8::7]/d?sslmode=disable", false).unwrap_err();
        assert!(error.to_string().contains("2001:db8::7"), "{error}");
    }

    #[test]
    fn allowing_plaintext_weakens_no_tls() {
        let remote = "postgres://u@db.example.com/d";
        let options = postgres_options(remote, true).unwrap();
        assert!(matches!(options.get_ssl_mode(), PgSslMode::VerifyFull));
        for mode in ["prefer", "allow"] {
            assert!(postgres_options(&format!("{remote}?sslmode={mode}"), true).is_err(), "{mode}");
        }
        let options = postgres_options(&format!("{remote}?sslmode=require"), true).unwrap();
        assert_eq!(exposure(&options), Some(Exposure::Unverified));
    }

    #[test]
    fn other_databases_are_named() {
        let table = [
            ("mysql://u:secret@h/d", "begins with \"mysql\""),
            ("\"postgres://u:secret@h/d\"", "remove them"),
            ("'postgres://u:secret@h/d'", "remove them"),
            ("c2VjcmV0secret", "base64"),
            ("", "base64"),
        ];
        for (url, part) in table {
            let error = dialect_of(url).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("secret"), "{error}");
        }
    }
}
