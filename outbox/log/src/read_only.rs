//! Sessions that cannot write, for tools that inspect a system that others depend on.

use std::time::Duration;

use migrations::Dialect;
use outbox::connect::dialect_of;
use sqlx::Connection as _;
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgConnection, Postgres};
#[cfg(feature = "sqlite")]
use sqlx::sqlite::SqliteConnection;

use crate::LogError;
use crate::failure::within;

/// Maximum duration of connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// A session for reading.
#[derive(Debug)]
pub enum ReadOnly {
    /// A session with the server's defaults, except that it may be idle for any time. Readers start
    /// each transaction with [`begin`].
    #[cfg(feature = "postgres")]
    Postgres(PgConnection),
    /// The file is opened for reading, and `query_only` is set. Statements have no time limit,
    /// because they block no other session.
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteConnection),
}

impl ReadOnly {
    /// Opens a session. Administrators of PostgreSQL see its `application_name`.
    ///
    /// # Errors
    /// [`LogError::Operator`] for a URL that cannot be used, [`LogError::Unavailable`] or
    /// [`LogError::Timeout`] for a database that cannot be reached.
    pub async fn open(url: &str, allow_plaintext: bool, application_name: &str) -> Result<Self, LogError> {
        within(CONNECT_TIMEOUT, async {
            match dialect_of(url)? {
                #[cfg(feature = "postgres")]
                Dialect::Postgres => {
                    let hosts = outbox::connect::Hosts::of(url, allow_plaintext)?;
                    let hosts = hosts.application_name(application_name);
                    // Boxed, because the future is large.
                    let opened = Box::pin(hosts.connect()).await;
                    let mut connection = opened.map_err(crate::postgres::unconnected)?;
                    // A tool reads several places in turn, and a broker in between.
                    let set = outbox::connect::stay_open(&mut connection).await;
                    set.map_err(LogError::during("configure the session"))?;
                    Ok(Self::Postgres(connection))
                }
                #[cfg(feature = "sqlite")]
                Dialect::Sqlite => opened_for_reading(url).await.map(Self::Sqlite),
                #[cfg(not(all(feature = "postgres", feature = "sqlite")))]
                dialect => {
                    let _ = (allow_plaintext, application_name);
                    Err(crate::open::not_built(dialect))
                }
            }
        })
        .await
    }

    /// Ends the session.
    ///
    /// # Errors
    /// [`LogError::Unavailable`] when the server was unreachable, which has no consequences.
    pub async fn close(self) -> Result<(), LogError> {
        let closed = match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => connection.close().await,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(connection) => connection.close().await,
        };
        closed.map_err(LogError::during("end the session"))
    }
}

/// Begins a read-only transaction with one snapshot, in which no statement takes longer than
/// `statement_timeout`; zero means no limit.
///
/// Sets nothing for the session. A pooler that shares sessions would pass the settings to a
/// service, whose writes would fail.
///
/// # Errors
/// The server's error. If the call is dropped, drop the transaction with it.
#[cfg(feature = "postgres")]
pub async fn begin(
    connection: &mut PgConnection,
    statement_timeout: Duration,
) -> Result<sqlx::Transaction<'_, Postgres>, sqlx::Error> {
    let mut tx = connection.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY").await?;
    // A database without an encoding returns its texts unconverted: a conversion of one that is not
    // UTF-8 would make the server refuse the whole answer.
    sqlx::query(
        "SELECT set_config('statement_timeout', $1, true), set_config('client_encoding',
            CASE WHEN getdatabaseencoding() = 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END, true)",
    )
    .bind(statement_timeout.as_millis().to_string())
    .execute(&mut *tx)
    .await?;
    Ok(tx)
}

#[cfg(feature = "sqlite")]
async fn opened_for_reading(url: &str) -> Result<SqliteConnection, LogError> {
    use sqlx::ConnectOptions as _;
    use std::str::FromStr as _;
    let options = sqlx::sqlite::SqliteConnectOptions::from_str(url).map_err(|error| {
        outbox::connect::InvalidUrl::Malformed { dialect: Dialect::Sqlite, problem: error.to_string() }
    })?;
    let options = options.create_if_missing(false).read_only(true).pragma("query_only", "ON");
    let options = options.busy_timeout(outbox::connect::BUSY_TIMEOUT);
    let options = options.row_buffer_size(crate::sqlite::store::ROWS_AHEAD);
    options.connect().await.map_err(LogError::during("open the file"))
}
