//! The settings of every session that the toolkit opens for itself, in one place.
//!
//! A role or a database can have defaults that are meant for its services. At `serializable` each
//! read of the log would take part in the order of the business' transactions, and the server would
//! abort those; read-only sessions could not keep a lease. So a session of the toolkit takes its
//! own. Sessions of a service's pool are the service's: nothing is set there.

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, PgConnection};

/// In the simple protocol: nothing is prepared, so that a pooler in between does not mind.
const SETTINGS: &str =
    "SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off";

/// Opens a session that does not depend on the defaults of its role and database.
///
/// # Errors
/// The client library's.
pub async fn connect_own(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let mut connection = options.connect().await?;
    set_own_defaults(&mut connection).await?;
    Ok(connection)
}

/// Gives a session the defaults of the toolkit's own sessions.
///
/// # Errors
/// The client library's.
pub async fn set_own_defaults(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(SETTINGS).execute(connection).await.map(drop)
}
