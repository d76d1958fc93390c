//! Connections of `relay migrate`, and the time limits of their calls.

use std::time::{Duration, Instant};

use migrations::{Backend, MigrateError, Migration, Migrator, WAIT_MAX};
#[cfg(feature = "postgres")]
use outbox::connect::answering;
use outbox::connect::opened_when_free;
use outbox_log::LogError;
#[cfg(feature = "postgres")]
use outbox_log::postgres::unconnected;
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection, SqliteConnection};

use crate::cli::failure::Failure;
use crate::cli::output;

/// Timeout for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for every call but a migration, which takes as long as its table is large.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two lines about the migration that this one waits for.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Applies the pending migrations, and names the migration that it waits for meanwhile. The
/// migrator waits for [`REPORT_INTERVAL`].
pub(super) async fn up<DB: Backend>(
    migrator: &Migrator<DB>,
    connection: &mut DB::Connection,
    database: &str,
) -> Result<&'static [Migration], MigrateError> {
    let since = Instant::now();
    loop {
        match migrator.up(connection).await {
            Err(MigrateError::Busy { holder, .. }) if since.elapsed() < WAIT_MAX => {
                let holder = output::one_line(&holder);
                note!("{database}: waiting for another migration: {holder}");
            }
            Err(MigrateError::Busy { holder, .. }) => {
                return Err(MigrateError::Busy { holder, waited: since.elapsed() });
            }
            ended => return ended,
        }
    }
}

/// Waits for the database up to [`CALL_TIMEOUT`].
pub(super) async fn within<T>(call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(ended) => ended,
        Err(_) => Err(LogError::Timeout { waited: CALL_TIMEOUT }.into()),
    }
}

pub(super) fn failed(what: &str, error: sqlx::Error) -> Failure {
    MigrateError::Database { what: what.to_owned(), source: Box::new(error) }.into()
}

#[cfg(feature = "postgres")]
pub(super) async fn connected(options: PgConnectOptions, database: &str) -> Result<PgConnection, Failure> {
    let opening = async { answering(&options).await.connect().await };
    let failure = match tokio::time::timeout(CONNECT_TIMEOUT, opening).await {
        Ok(Ok(connection)) => return Ok(connection),
        Ok(Err(error)) => unconnected(&options, error),
        Err(_) => LogError::Timeout { waited: CONNECT_TIMEOUT },
    };
    Err(Failure::from(failure).about(database))
}

pub(super) async fn opened(
    options: &SqliteConnectOptions,
    database: &str,
) -> Result<SqliteConnection, Failure> {
    let failure = match tokio::time::timeout(CONNECT_TIMEOUT, opened_when_free(|| options.connect())).await {
        Ok(Ok(connection)) => return Ok(connection),
        Ok(Err(error)) => failed("connect", error),
        Err(_) => Failure::from(LogError::Timeout { waited: CONNECT_TIMEOUT }),
    };
    Err(failure.about(database))
}

pub(super) async fn close<C: Connection>(connection: C) -> Result<(), Failure> {
    within(async { connection.close().await.map_err(|error| failed("close the connection", error)) }).await
}
