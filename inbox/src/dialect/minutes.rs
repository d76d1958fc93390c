//! Counts what consumers did, per minute.

use std::future::Future;

use time::OffsetDateTime;

use super::Guards;
use crate::minutes::Counts;

type Result<T> = std::result::Result<T, sqlx::Error>;

/// The table of minutes.
#[doc(hidden)]
pub trait Minutes: Guards {
    /// Adds counts to the current minute of the database's clock.
    fn add_counts(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        consumer: &str,
        counts: Counts,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Returns the counts of each consumer since a moment, by name: applied, duplicates.
    fn counts(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        from: OffsetDateTime,
    ) -> impl Future<Output = Result<Vec<(String, i64, i64)>>> + Send;

    /// Forgets minutes before a moment.
    fn purge_minutes(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        before: OffsetDateTime,
    ) -> impl Future<Output = Result<()>> + Send;
}
