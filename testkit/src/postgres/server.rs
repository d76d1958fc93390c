//! The server that tests use, and connections to it.

use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{Connection as _, PgConnection};

use crate::failure::Failure;

/// The environment variable that [`url`] reads: `OUTBOX_POSTGRES_URL`.
pub const URL_VARIABLE: &str = "OUTBOX_POSTGRES_URL";

/// Returns the URL in [`URL_VARIABLE`].
///
/// # Errors
/// The variable is not set. The text describes its value.
pub fn url() -> Result<String, Failure> {
    url_in(std::env::var(URL_VARIABLE).ok())
}

fn url_in(value: Option<String>) -> Result<String, Failure> {
    value.filter(|url| !url.is_empty()).ok_or_else(|| {
        Failure::new(format!(
            "this test needs PostgreSQL, and the environment variable {URL_VARIABLE} is not set: set it to the URL of \
             a database in which tests may create schemas, such as postgres://user:password@localhost/test"
        ))
    })
}

/// The maximum duration of one attempt to connect.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);

/// How long a server without a free connection is tried again. Other tests may end meanwhile.
const BUSY_MAX: Duration = Duration::from_secs(30);

/// The pause before it is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// States in which a server takes no connection for now: too many connections, or it is starting.
const BUSY: [&str; 2] = ["53300", "57P03"];

/// A database of a server.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) options: PgConnectOptions,
}

impl Server {
    /// Reads a URL. Tests have no secrets, so `sslmode=disable` is accepted for every host.
    pub(super) fn at(url: &str) -> Result<Self, Failure> {
        let options = outbox::connect::postgres_options(url, true);
        let options = options.map_err(Failure::during("use the URL of PostgreSQL"))?;
        Ok(Self { options })
    }

    /// Opens a connection.
    pub(super) async fn connect(&self) -> Result<PgConnection, Failure> {
        let begun = Instant::now();
        loop {
            let connecting = PgConnection::connect_with(&self.options);
            match tokio::time::timeout(ATTEMPT_MAX, connecting).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) if is_busy(&error) && begun.elapsed() < BUSY_MAX => {
                    tokio::time::sleep(PAUSE).await;
                }
                Ok(Err(error)) => return Err(Failure::because(self.unreached(&error), error)),
                Err(_) => {
                    let place = self.place();
                    return Err(Failure::new(format!(
                        "PostgreSQL at {place} does not answer within {ATTEMPT_MAX:?}: start the server, or give the \
                         URL of another one"
                    )));
                }
            }
        }
    }

    /// Names the database. Contains no secret.
    pub(super) fn place(&self) -> String {
        let host = match self.options.get_socket() {
            Some(socket) => socket.display().to_string(),
            None => self.options.get_host().to_owned(),
        };
        format!("{host}:{}/{}", self.options.get_port(), self.database())
    }

    pub(super) fn database(&self) -> &str {
        self.options.get_database().unwrap_or(self.role())
    }

    pub(super) fn role(&self) -> &str {
        self.options.get_username()
    }

    /// Says what to do about a failed connect.
    fn unreached(&self, error: &sqlx::Error) -> String {
        let remedy = match error {
            error if is_busy(error) => {
                "run fewer tests at once (--test-threads), or raise max_connections of the server"
            }
            sqlx::Error::Tls(_) if matches!(self.options.get_ssl_mode(), PgSslMode::VerifyFull) => {
                "if the server has no TLS, add sslmode=disable to the URL"
            }
            sqlx::Error::Database(_) => "correct the URL",
            _ => "start the server, or give the URL of another one",
        };
        format!("cannot connect to PostgreSQL at {} as {}: {remedy}", self.place(), self.role())
    }
}

/// Returns whether the server takes no connection for now.
fn is_busy(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| BUSY.contains(&&*code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_is_missing_is_named() {
        for missing in [None, Some(String::new())] {
            let text = url_in(missing).unwrap_err().to_string();
            assert!(text.contains("OUTBOX_POSTGRES_URL") && text.contains("postgres://"), "{text}");
        }
        assert_eq!(url_in(Some(String::from("postgres://a"))).unwrap(), "postgres://a");
    }

    #[test]
    fn a_place_has_no_password() {
        let server = Server::at("postgres://ann:secret@db.example.com:5433/orders?sslmode=disable").unwrap();
        assert_eq!(server.place(), "db.example.com:5433/orders");
        assert!(!server.unreached(&sqlx::Error::PoolClosed).contains("secret"));
    }
}
