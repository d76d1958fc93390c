//! Errors of the database that the inbox handles specially.

pub use outbox::StoreError;
use sqlx::error::DatabaseError;

use crate::day::Day;

/// SQLSTATE of a lock wait that reached its timeout.
pub(crate) const LOCK_NOT_AVAILABLE: &str = "55P03";

/// SQLSTATE of the refusal to create a day again.
const DAY_IS_GONE: &str = "55000";

/// Returns whether another transaction held a lock for longer than this one waits.
pub(crate) fn is_of_lock(error: &StoreError) -> bool {
    error.answer().and_then(DatabaseError::code).is_some_and(|code| code == LOCK_NOT_AVAILABLE)
}

/// Returns the day that existed before and has disappeared, if that is why a day was not created.
pub(crate) fn lost_day(error: &StoreError) -> Option<Day> {
    let answer = error.answer()?;
    let part = answer.table().filter(|_| answer.code().is_some_and(|code| code == DAY_IS_GONE))?;
    Day::from_suffix(part.rsplit('_').next()?)
}
