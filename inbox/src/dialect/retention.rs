//! Remembers and forgets days of message ids.

use std::future::Future;

use sqlx::Pool;

use super::{Guards, Reading};
use crate::day::{Day, DayRange};
use crate::store_error::StoreError;

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Remembering and forgetting.
#[doc(hidden)]
pub trait Retention: Guards {
    /// Whether every day can hold rows without being created first.
    const DAYS_ARE_IMPLICIT: bool;

    /// Reads the clock and where memory begins.
    fn read_clock(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
    ) -> impl Future<Output = Result<Reading>> + Send;

    /// Notes where memory begins, unless it is already noted.
    fn begin_memory(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        from: Day,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Returns the days of the range that can hold rows.
    fn days(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        range: DayRange,
    ) -> impl Future<Output = Result<Vec<Day>>> + Send;

    /// Makes the days of the range able to hold rows, except days before memory begins: all of them
    /// or none. Call it outside a transaction: it gives way to others and tries again. Returns the
    /// number of days created.
    fn create_days(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        range: DayRange,
    ) -> impl Future<Output = std::result::Result<u64, StoreError>> + Send;

    /// Forgets everything before a day and moves the beginning of memory there, in one step or with
    /// the refusal first. Returns the number of days (PostgreSQL) or rows (SQLite) removed.
    fn expire(
        pool: &Pool<Self>,
        statements: &Self::Statements,
        keep_from: Day,
    ) -> impl Future<Output = std::result::Result<u64, StoreError>> + Send;
}
