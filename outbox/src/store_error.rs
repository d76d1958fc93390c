//! The error of a failed database operation.

use std::borrow::Cow;
use std::error::Error;

use message::Fault;
use migrations::SqlErrorKind;
use sqlx::error::DatabaseError;

use crate::remedy::Remedy;

/// The database could not do something that an inbox, idempotency keys or sagas need. Nothing took
/// effect, unless only the answer was lost.
#[derive(Debug, thiserror::Error)]
#[error("the database could not {what}")]
pub struct StoreError {
    what: Cow<'static, str>,
    kind: SqlErrorKind,
    #[source]
    source: Box<dyn Error + Send + Sync>,
}

impl StoreError {
    /// Makes an error of a kind.
    #[doc(hidden)]
    pub fn new(
        what: impl Into<Cow<'static, str>>,
        kind: SqlErrorKind,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self { what: what.into(), kind, source: source.into() }
    }

    /// Makes an error for an operation that was interrupted, or for a simulation: try again.
    pub fn broken(
        what: impl Into<Cow<'static, str>>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
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
        self.remedy().fault()
    }

    /// Returns what the work should do.
    #[doc(hidden)]
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        if self.is_transient() { Remedy::RunAgain } else { Remedy::Correct }
    }

    /// Returns whether the same transaction may succeed at once on another run.
    #[doc(hidden)]
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.kind == SqlErrorKind::Conflict
    }

    /// Returns whether the same call in a new transaction can succeed without any intervention.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.kind != SqlErrorKind::Refused
    }

    /// Returns the server's answer, if it gave one.
    #[doc(hidden)]
    #[must_use]
    pub fn answer(&self) -> Option<&dyn DatabaseError> {
        self.source.downcast_ref().and_then(sqlx::Error::as_database_error)
    }
}
