//! From a URL to a log.

use std::sync::Arc;

use message::Source;
use migrations::Dialect;

use crate::address::Address;
use crate::connect::dialect_of;
use crate::log::{LogError, LogOptions, LogStore};
use crate::postgres::PostgresLog;
use crate::sqlite::SqliteLog;

/// The log of the database at an address: `postgres://…` or `sqlite:…`. Messages carry `source` as their CloudEvents
/// source. Connects to nothing yet.
///
/// # Errors
/// [`LogError::Operator`] when the URL cannot be used or would send secrets in the clear.
pub fn open(
    address: impl Into<Address>,
    source: Source,
    options: LogOptions,
) -> Result<Arc<dyn LogStore>, LogError> {
    let address = address.into();
    let url = address.url().map_err(LogError::operator)?;
    Ok(match dialect_of(&url)? {
        Dialect::Postgres => Arc::new(PostgresLog::new(address, source, options)?),
        Dialect::Sqlite => Arc::new(SqliteLog::new(&url, source, options)?),
    })
}
