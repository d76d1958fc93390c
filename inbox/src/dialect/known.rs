//! Looks up what is known about messages.

use std::future::Future;

use uuid::Uuid;

use super::Guards;
use crate::activity::ActivityRows;
use crate::known::Known;

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Lookups of messages.
#[doc(hidden)]
pub trait Lookup: Guards {
    /// Returns everything that is known of a message, for all consumers.
    fn known(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        id: Uuid,
    ) -> impl Future<Output = Result<Vec<Known>>> + Send;

    /// Counts what consumers did with messages whose ids are not below `from`, and what waits.
    /// Counts at most `rows_max` rows of each kind.
    fn activity(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        from: Uuid,
        rows_max: u32,
    ) -> impl Future<Output = Result<ActivityRows>> + Send;
}
