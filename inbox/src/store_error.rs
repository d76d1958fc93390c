//! The error of a failed database operation.

use std::error::Error;

use message::Fault;
use migrations::SqlErrorKind;
use sqlx::error::DatabaseError;

use crate::day::Day;

/// SQLSTATE of a lock wait that reached its timeout.
pub(crate) const LOCK_NOT_AVAILABLE: &str = "55P03";

/// SQLSTATE of the refusal to create a day again.
const DAY_IS_GONE: &str = "55000";

/// The database could not do something that the inbox or idempotency keys need. Nothing took
/// effect.
#[derive(Debug, thiserror::Error)]
#[error("the database could not {what}")]
pub struct StoreError {
    what: String,
    kind: SqlErrorKind,
    #[source]
    source: Box<dyn Error + Send + Sync>,
}

impl StoreError {
    pub(crate) fn new(
        what: impl Into<String>,
        kind: SqlErrorKind,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self { what: what.into(), kind, source: source.into() }
    }

    /// Makes an error for an operation that was interrupted, or for a simulation: try again.
    pub fn broken(what: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(what, SqlErrorKind::Unavailable, source)
    }

    /// Returns a function for `map_err`.
    #[doc(hidden)]
    pub fn during(what: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |error| Self::new(what, SqlErrorKind::of(&error), error)
    }

    /// Returns the party at fault: the infrastructure ([`Fault::Broker`]: wait and try again) or
    /// the operator.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self.kind {
            SqlErrorKind::Lost | SqlErrorKind::Unavailable | SqlErrorKind::Conflict => Fault::Broker,
            SqlErrorKind::Refused => Fault::Operator,
        }
    }

    /// Returns whether another transaction held a lock for longer than this one waits.
    pub(crate) fn is_of_lock(&self) -> bool {
        let error = self.source.downcast_ref().and_then(sqlx::Error::as_database_error);
        error.and_then(DatabaseError::code).is_some_and(|code| code == LOCK_NOT_AVAILABLE)
    }

    /// Returns the day that existed before and has disappeared, if that is why a day was not
    /// created.
    pub(crate) fn lost_day(&self) -> Option<Day> {
        let error = self.source.downcast_ref().and_then(sqlx::Error::as_database_error)?;
        let part = error.table().filter(|_| error.code().is_some_and(|code| code == DAY_IS_GONE))?;
        Day::from_suffix(part.rsplit('_').next()?)
    }

    /// Returns whether the same call in a new transaction can succeed without any intervention.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.kind != SqlErrorKind::Refused
    }
}
