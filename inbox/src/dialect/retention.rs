//! Remembers and forgets days.

use std::future::Future;

use sqlx::Pool;

use super::Guards;
use crate::day::{Day, DayRange};
use crate::store_error::StoreError;
use crate::tables::Tables;

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Remembering and forgetting.
#[doc(hidden)]
pub trait Retention: Guards {
    /// Whether every day can hold rows without being created first.
    const DAYS_ARE_IMPLICIT: bool;

    /// Records where memory begins, unless it is already recorded.
    fn begin_memory(
        connection: &mut Self::Connection,
        tables: &Tables<Self>,
        from: Day,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Returns the days of the range that can hold rows.
    fn days(
        connection: &mut Self::Connection,
        tables: &Tables<Self>,
        range: DayRange,
    ) -> impl Future<Output = Result<Vec<Day>>> + Send;

    /// Makes the days of the range able to hold rows, except days before memory begins: all of them
    /// or none. Call it outside a transaction: it gives way to others and tries again. Returns the
    /// number of days created.
    fn create_days(
        connection: &mut Self::Connection,
        tables: &Tables<Self>,
        range: DayRange,
    ) -> impl Future<Output = std::result::Result<u64, StoreError>> + Send;

    /// Forgets everything before a day and moves the beginning of memory there, either in one step
    /// or by refusing it first. Returns the number of days (PostgreSQL) or rows (SQLite) removed.
    fn expire(
        pool: &Pool<Self>,
        tables: &Tables<Self>,
        keep_from: Day,
    ) -> impl Future<Output = std::result::Result<u64, StoreError>> + Send;
}
