//! Sessions that cannot write, for whoever looks at a system that others depend on.

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Connection as _};

use migrations::Dialect;

use crate::connect::{InvalidUrl, dialect_of, postgres_options};
use crate::log::LogError;
use crate::log::failure::within;

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// A session that the server itself keeps from writing.
#[derive(Debug)]
pub enum ReadOnly {
    /// Every transaction is `READ ONLY`, and no statement takes longer than was said.
    Postgres(PgConnection),
    /// The file is opened for reading, and `query_only` is set. Its statements have no time limit: they hold nobody up.
    Sqlite(SqliteConnection),
}

impl ReadOnly {
    /// Opens a session. `application_name` is what an administrator of PostgreSQL sees.
    ///
    /// # Errors
    /// [`LogError::Operator`] for a URL that cannot be used, [`LogError::Unavailable`] or [`LogError::Timeout`] for a
    /// database that is away.
    pub async fn open(
        url: &str,
        allow_plaintext: bool,
        application_name: &str,
        statement_timeout: Duration,
    ) -> Result<Self, LogError> {
        within(CONNECT_TIMEOUT, async {
            match dialect_of(url)? {
                Dialect::Postgres => {
                    let options = postgres_options(url, allow_plaintext)?.application_name(application_name);
                    let connection = options.connect().await.map_err(LogError::during("connect"))?;
                    restricted(connection, statement_timeout).await.map(Self::Postgres)
                }
                Dialect::Sqlite => {
                    let options = SqliteConnectOptions::from_str(url).map_err(|error| {
                        InvalidUrl::Malformed { dialect: Dialect::Sqlite, problem: error.to_string() }
                    })?;
                    let options = options.create_if_missing(false).read_only(true).pragma("query_only", "ON");
                    let connected = options.busy_timeout(crate::connect::SQLITE_BUSY_TIMEOUT).connect().await;
                    connected.map_err(LogError::during("open the file")).map(Self::Sqlite)
                }
            }
        })
        .await
    }

    /// Ends the session.
    ///
    /// # Errors
    /// [`LogError::Unavailable`] when the server had gone; nothing depends on it.
    pub async fn close(self) -> Result<(), LogError> {
        let closed = match self {
            Self::Postgres(connection) => connection.close().await,
            Self::Sqlite(connection) => connection.close().await,
        };
        closed.map_err(LogError::during("end the session"))
    }
}

/// Set with statements and not at the start of the session, so that a pooler in between does not refuse it. A session
/// of a pooler may be another one with the next transaction, so each of them says again that it is read-only.
async fn restricted(
    mut connection: PgConnection,
    statement_timeout: Duration,
) -> Result<PgConnection, LogError> {
    sqlx::query(
        "SELECT set_config('default_transaction_read_only', 'on', false), set_config('statement_timeout', $1, false)",
    )
    .bind(statement_timeout.as_millis().to_string())
    .execute(&mut connection)
    .await
    .map_err(LogError::during("make the session read-only"))?;
    Ok(connection)
}
