//! Opens a log from an address. The modules of operators offer their functions as `open`.

use std::sync::Arc;

use message::Source;
use migrations::Dialect;

use crate::address::Address;
use crate::admin::LogAdmin;
use crate::entries::{LogEntries, Opened};
#[cfg(feature = "postgres")]
use crate::postgres::PostgresLog;
use crate::retention::LogRetention;
#[cfg(feature = "sqlite")]
use crate::sqlite::SqliteLog;
use crate::{LogError, LogOptions, LogStore};

/// All operations on a log.
trait Log: LogStore + LogAdmin + LogEntries + LogRetention {}

impl<T: LogStore + LogAdmin + LogEntries + LogRetention> Log for T {}

/// Opens the log of the database at an address: `postgres://…`, `sqlite:…` or a pool. Messages
/// carry `source` as their CloudEvents source. Does not connect yet.
///
/// # Errors
/// [`LogError::Operator`] when the URL cannot be used or would send secrets in the clear, or when
/// this program was built without the database.
pub fn open(
    address: impl Into<Address>,
    source: Source,
    options: LogOptions,
) -> Result<Arc<dyn LogStore>, LogError> {
    Ok(log(address.into(), source, options)?)
}

/// Opens the administration of the database at an address: `postgres://…` or `sqlite:…`. Does not
/// connect yet.
///
/// # Errors
/// [`LogError::Operator`] when the URL cannot be used or would send secrets in the clear.
pub fn admin(
    address: impl Into<Address>,
    source: Source,
    options: LogOptions,
) -> Result<Arc<dyn LogAdmin>, LogError> {
    Ok(log(address.into(), source, options)?)
}

/// Opens administration and entries of the log at an address: `postgres://…` or `sqlite:…`. Does
/// not connect yet.
///
/// # Errors
/// [`LogError::Operator`] when the URL cannot be used or would send secrets in the clear.
pub fn entries(address: impl Into<Address>, source: Source, options: LogOptions) -> Result<Opened, LogError> {
    let log = log(address.into(), source, options)?;
    Ok((Arc::clone(&log) as Arc<dyn LogAdmin>, log))
}

/// Opens the retention of the database at an address: `postgres://…` or `sqlite:…`. Does not
/// connect yet.
///
/// # Errors
/// [`LogError::Operator`] when the URL cannot be used or would send secrets in the clear.
pub fn retention(
    address: impl Into<Address>,
    source: Source,
    options: LogOptions,
) -> Result<Arc<dyn LogRetention>, LogError> {
    Ok(log(address.into(), source, options)?)
}

fn log(address: Address, source: Source, options: LogOptions) -> Result<Arc<dyn Log>, LogError> {
    match address.dialect()? {
        #[cfg(feature = "postgres")]
        Dialect::Postgres => Ok(Arc::new(PostgresLog::new(address, source, options)?)),
        #[cfg(feature = "sqlite")]
        Dialect::Sqlite => Ok(Arc::new(SqliteLog::new(address, source, options)?)),
        #[cfg(not(all(feature = "postgres", feature = "sqlite")))]
        dialect => {
            let _ = (source, options);
            Err(not_built(dialect))
        }
    }
}

/// Makes the error of a program that was built without a database.
#[cfg(not(all(feature = "postgres", feature = "sqlite")))]
pub(crate) fn not_built(dialect: Dialect) -> LogError {
    LogError::operator(format!(
        "this program was built without {dialect}; enable the feature {dialect:?}",
        dialect = dialect.as_str()
    ))
}
