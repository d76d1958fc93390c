//! Connections of `relay migrate`, and the time limits of their calls.

use std::time::Duration;

use migrations::MigrateError;
#[cfg(feature = "postgres")]
use outbox::connect::Hosts;
use outbox::connect::opened_when_free;
use outbox_log::in_time;
#[cfg(feature = "postgres")]
use outbox_log::postgres::unconnected;
#[cfg(feature = "postgres")]
use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection, SqliteConnection};

use crate::cli::failure::Failure;

/// Timeout for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for every call except a migration, whose duration depends on the size of its table.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Waits for the database up to [`CALL_TIMEOUT`].
pub(super) async fn within<T>(call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    in_time(CALL_TIMEOUT, call).await?
}

pub(super) fn failed(what: &str, error: sqlx::Error) -> Failure {
    MigrateError::Database { what: what.to_owned(), source: Box::new(error) }.into()
}

#[cfg(feature = "postgres")]
pub(super) async fn connected(hosts: Hosts, database: &str) -> Result<PgConnection, Failure> {
    let failure = match in_time(CONNECT_TIMEOUT, hosts.connect()).await {
        Ok(Ok(connection)) => return Ok(connection),
        Ok(Err(error)) => unconnected(error),
        Err(late) => late,
    };
    Err(Failure::from(failure).about(database))
}

pub(super) async fn opened(
    options: &SqliteConnectOptions,
    database: &str,
) -> Result<SqliteConnection, Failure> {
    let failure = match in_time(CONNECT_TIMEOUT, opened_when_free(|| options.connect())).await {
        Ok(Ok(connection)) => return Ok(connection),
        Ok(Err(error)) => failed("connect", error),
        Err(late) => Failure::from(late),
    };
    Err(failure.about(database))
}

pub(super) async fn close<C: Connection>(connection: C) -> Result<(), Failure> {
    within(async { connection.close().await.map_err(|error| failed("close the connection", error)) }).await
}
