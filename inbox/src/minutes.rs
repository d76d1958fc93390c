//! Stored counts of consumers per minute. They are stored because a duplicate leaves no row that
//! could be counted later.
//!
//! Each process of a consumer adds its counts every [`STORE_EVERY`], outside the transactions of
//! messages, and once more when it stops. So the counts are informative, not exact: a process that
//! is killed loses its last counts. Only the runner counts; direct calls of the guard are not
//! counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use time::OffsetDateTime;

use crate::attempts::error_text;
use crate::dialect::Dialect;
use crate::inbox::Inbox;
use crate::name::ConsumerName;
use crate::store_error::StoreError;

/// Interval at which a process stores its counts.
pub(crate) const STORE_EVERY: Duration = Duration::from_secs(15);

/// Retention of a minute.
const KEEP: Duration = Duration::from_secs(86_400);

/// Counts of one consumer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that took effect.
    pub applied: u64,
    /// Deliveries suppressed as duplicates.
    pub duplicates: u64,
}

/// Stored counts of one consumer.
pub(crate) struct ConsumerCounts {
    pub(crate) consumer: String,
    pub(crate) counts: Counts,
}

/// Counts that a process has not stored yet. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally(Arc<Cells>);

#[derive(Debug, Default)]
struct Cells {
    applied: AtomicU64,
    duplicates: AtomicU64,
}

impl Tally {
    pub(crate) fn add(&self, counts: Counts) {
        self.0.applied.fetch_add(counts.applied, Ordering::Relaxed);
        self.0.duplicates.fetch_add(counts.duplicates, Ordering::Relaxed);
    }

    /// Takes the counts and resets them to zero; `None` when they are zero.
    pub(crate) fn take(&self) -> Option<Counts> {
        let counts = Counts {
            applied: self.0.applied.swap(0, Ordering::Relaxed),
            duplicates: self.0.duplicates.swap(0, Ordering::Relaxed),
        };
        (counts != Counts::default()).then_some(counts)
    }
}

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

    /// Returns the counts of each consumer since a given time. Returns none if the role may not
    /// read them, so that the caller can still report the rest.
    pub(crate) async fn counts(
        &self,
        connection: &mut DB::Connection,
        from: OffsetDateTime,
    ) -> Result<Vec<ConsumerCounts>, StoreError> {
        let counts = self.tables().counts(connection, from).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_taken_once_and_given_back_when_it_was_not_stored() {
        let tally = Tally::default();
        assert_eq!(tally.take(), None);
        tally.add(Counts { applied: 2, duplicates: 1 });
        let shared = tally.clone();
        shared.add(Counts { applied: 1, duplicates: 0 });
        let taken = tally.take();
        assert_eq!(taken, Some(Counts { applied: 3, duplicates: 1 }));
        assert_eq!(tally.take(), None);
        taken.into_iter().for_each(|counts| tally.add(counts));
        assert_eq!(tally.take(), taken);
    }
}
