//! A fault's own connection.

use std::str::FromStr as _;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

use crate::Failure;

/// The `application_name` of a fault's sessions. Other faults exclude sessions with this name.
pub(super) const APPLICATION: &str = "storm-fault";

/// Connects directly instead of through a proxy. No statement waits longer than three seconds, so
/// that `inject` returns.
pub(super) async fn connect(url: &str) -> Result<PgConnection, Failure> {
    Ok(options(url)?.connect().await?)
}

/// Returns the options with which [`connect`] connects.
pub(super) fn options(url: &str) -> Result<PgConnectOptions, Failure> {
    Ok(PgConnectOptions::from_str(url)?
        .application_name(APPLICATION)
        .options([("statement_timeout", "3s"), ("idle_in_transaction_session_timeout", "0")]))
}

/// Runs SQL that a fault defines as a constant.
pub(super) async fn run(session: &mut PgConnection, sql: String) -> Result<(), Failure> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(session).await?;
    Ok(())
}

/// Ends a session and with it its transaction. A session that the server has ended is ignored.
pub(super) async fn end(session: PgConnection) {
    let _ = session.close().await;
}
