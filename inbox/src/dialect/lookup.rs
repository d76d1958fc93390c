//! Lookups that each database does in its own way.

use std::future::Future;
use std::time::Duration;

use migrations::query::{Query, Row};

use super::Guards;
use crate::dead_letters::HeldKey;
use crate::ids::DeadLetterId;
use crate::tables::Tables;

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Lookups of many messages.
#[doc(hidden)]
pub trait Lookup: Guards {
    /// Returns the first open dead letter that holds each of these keys, in their order.
    fn holders(
        connection: &mut Self::Connection,
        tables: &Tables<Self>,
        consumer: &str,
        keys: &[HeldKey],
    ) -> impl Future<Output = Result<Vec<Option<DeadLetterId>>>> + Send;

    /// Runs a statement that only reads, for at most `limit` where the database has such a limit;
    /// zero sets none.
    fn read_within(
        connection: &mut Self::Connection,
        query: Query<Self>,
        limit: Duration,
    ) -> impl Future<Output = Result<Vec<Row<Self>>>> + Send;
}
