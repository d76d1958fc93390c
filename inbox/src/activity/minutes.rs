//! Stored counts of consumers per minute. They are stored because a duplicate leaves no row that
//! could be counted later.
//!
//! Each process of a consumer adds its counts every [`STORE_EVERY`], outside the transactions of
//! messages, and once more when it stops. So the counts are informative, not exact: a process that
//! is killed loses its last counts. Only the runner counts; direct calls of the guard are not
//! counted.

use std::time::Duration;

use time::OffsetDateTime;

use super::counts::{ConsumerCounts, Counts};
use crate::dialect::Dialect;
use crate::error_text::error_text;
use crate::ids::ConsumerName;
use crate::inbox::Inbox;
use crate::store_error::StoreError;

/// Interval at which a process stores its counts.
pub(crate) const STORE_EVERY: Duration = Duration::from_secs(15);

/// Retention of a minute.
const KEEP: Duration = Duration::from_secs(86_400);

impl<DB: Dialect> Inbox<DB> {
    /// Adds the counts of a process to the current minute. Cancel-safe, but then it is unknown
    /// whether they were added.
    pub(crate) async fn add_counts(&self, consumer: &ConsumerName, counts: Counts) -> Result<(), StoreError> {
        let what = "store counts of consumers";
        let mut connection = self.acquire(what).await?;
        self.tables()
            .add_counts(&mut connection, consumer.as_str(), counts)
            .await
            .map_err(StoreError::during(what))
    }

    /// Forgets minutes that are older than [`KEEP`].
    pub(crate) async fn purge_minutes(&self, now: OffsetDateTime) -> Result<(), StoreError> {
        let what = "delete old counts of consumers";
        let mut connection = self.acquire(what).await?;
        self.tables().purge_minutes(&mut connection, now - KEEP).await.map_err(StoreError::during(what))
    }

    /// Returns the counts of each consumer since a given time, and the last kept minute in which it
    /// applied something, even if it has been idle since. Returns none if the role may not read
    /// them, so that the caller can still report the rest.
    pub(crate) async fn counts(
        &self,
        connection: &mut DB::Connection,
        from: OffsetDateTime,
    ) -> Result<Vec<ConsumerCounts>, StoreError> {
        let back_to = from.min(OffsetDateTime::now_utc() - KEEP);
        let counts = self.tables().counts(connection, from, back_to).await;
        let counts = counts.map_err(StoreError::during("read counts of consumers"));
        match counts {
            Err(error) if !error.is_transient() => {
                tracing::debug!(error = error_text(&error), "could not read the counts of duplicates");
                Ok(Vec::new())
            }
            counts => counts,
        }
    }
}
