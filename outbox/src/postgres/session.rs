//! The settings of every session that the toolkit opens for itself.
//!
//! A role or a database can have defaults that are meant for its services. At `serializable`, each
//! read of the log would take part in conflicts with the business transactions, and the server
//! would abort those. Read-only sessions could not keep a lease. A limit for idle sessions is meant
//! for sessions that a service forgot: it would end a relay's session between two renewals of the
//! lease, and a command between two statements. Therefore a session of the toolkit overrides these
//! defaults. Sessions of a service's pool belong to the service and are not changed.

use sqlx::PgConnection;

use crate::postgres::hosts::{Hosts, NoPrimary};

/// Ends the limit for idle sessions, which PostgreSQL 13 does not have.
macro_rules! no_idle_limit {
    () => {
        "SELECT set_config('idle_session_timeout', '0', false) \
         WHERE current_setting('idle_session_timeout', true) IS NOT NULL"
    };
}

/// Sent in the simple protocol, so that nothing is prepared and any pooler accepts it.
const SETTINGS: &str = concat!(
    "SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off; ",
    no_idle_limit!(),
);

/// Opens a session with the primary that does not depend on the defaults of its role and database.
///
/// A single host has no time limit.
///
/// # Errors
/// [`NoPrimary`]. Cancel-safe.
pub async fn connect_own(hosts: &Hosts) -> Result<PgConnection, NoPrimary> {
    let mut primary = hosts.primary().await?;
    match set_own_defaults(&mut primary.connection).await {
        Ok(()) => Ok(primary.connection),
        Err(error) => Err(NoPrimary::of(primary.options, error)),
    }
}

/// Gives a session the defaults of the toolkit's own sessions.
///
/// # Errors
/// The client library's error.
pub async fn set_own_defaults(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(SETTINGS).execute(connection).await.map(drop)
}

/// Lets a session rest between two statements for as long as it must. A pooler that gives it to a
/// service afterwards does no harm: the session only stays open.
///
/// # Errors
/// The client library's error.
pub async fn stay_open(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(no_idle_limit!()).execute(connection).await.map(drop)
}
