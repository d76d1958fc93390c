//! Reads the outbox for a comparison with another system: in batches, in the order of message ids,
//! each row with its state at the relay.
//!
//! | module | contents |
//! |---|---|
//! | `rows` | [`Rows`], [`Row`], [`Stage`]: the rows, and how they are read |

pub(crate) mod rows;

#[cfg(feature = "postgres")]
use std::time::Duration;

pub use rows::{Row, Rows, Stage};

use crate::{LogError, RelayName};

/// Opens the outbox of a relay in PostgreSQL.
///
/// # Errors
/// [`LogError::Operator`] when the schema does not fit.
#[cfg(feature = "postgres")]
pub async fn postgres(
    connection: sqlx::PgConnection,
    schema: Option<&migrations::Identifier>,
    relay: &RelayName,
) -> Result<Box<dyn Rows>, LogError> {
    postgres_within(connection, schema, relay, Duration::ZERO).await
}

/// Opens the outbox of a relay in PostgreSQL. No statement takes longer than `statement_timeout`;
/// zero means no limit.
///
/// # Errors
/// [`LogError::Operator`] when the schema does not fit, or when the log lacks a segment.
#[cfg(feature = "postgres")]
pub async fn postgres_within(
    connection: sqlx::PgConnection,
    schema: Option<&migrations::Identifier>,
    relay: &RelayName,
    statement_timeout: Duration,
) -> Result<Box<dyn Rows>, LogError> {
    let opened = crate::postgres::PostgresRows::open(connection, schema, relay, statement_timeout);
    Ok(Box::new(opened.await?))
}

/// Opens the outbox of a relay in SQLite.
///
/// # Errors
/// [`LogError::Operator`] when the schema does not fit.
#[cfg(feature = "sqlite")]
pub async fn sqlite(
    connection: sqlx::SqliteConnection,
    relay: &RelayName,
) -> Result<Box<dyn Rows>, LogError> {
    Ok(Box::new(crate::sqlite::SqliteRows::open(connection, relay).await?))
}
