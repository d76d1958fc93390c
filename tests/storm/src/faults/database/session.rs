//! A fault's own connection.

use std::str::FromStr as _;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

use crate::Failure;

/// As which a fault's sessions are listed: other faults leave them alone.
pub(super) const APPLICATION: &str = "storm-fault";

/// Connects directly, past every proxy. No statement waits longer than three seconds, so that a
/// inject returns.
pub(super) async fn connect(url: &str) -> Result<PgConnection, Failure> {
    Ok(options(url)?.connect().await?)
}

/// How [`connect`] connects.
pub(super) fn options(url: &str) -> Result<PgConnectOptions, Failure> {
    Ok(PgConnectOptions::from_str(url)?
        .application_name(APPLICATION)
        .options([("statement_timeout", "3s"), ("idle_in_transaction_session_timeout", "0")]))
}

/// Runs statements that are constants of a fault.
pub(super) async fn run(session: &mut PgConnection, sql: String) -> Result<(), Failure> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(session).await?;
    Ok(())
}

/// Ends a session and with it its transaction. One that the server has ended is as good.
pub(super) async fn end(session: PgConnection) {
    let _ = session.close().await;
}
