//! Remembering for as long as promised, and forgetting without a hole.
//!
//! A day is forgotten whole, and in the same step the beginning of memory moves behind it. Ids from
//! before that moment are refused by every process, whatever its own retention: on PostgreSQL
//! because no partition holds them and none is ever created for them again, on SQLite because the
//! insert itself compares. So processes with different settings cannot open a hole; the shortest
//! retention wins.

use sqlx::Connection;

use crate::attempts::error_text;
use crate::day::{Day, back};
use crate::dialect::Dialect;
use crate::error::OpenError;
use crate::inbox::Inbox;
use crate::store_error::StoreError;
use crate::telemetry;

/// Counts of what [`Inbox::maintain`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Maintained {
    /// Days that can hold rows now and could not before (PostgreSQL).
    pub created: u64,
    /// Days (PostgreSQL) or rows (SQLite) that were forgotten.
    pub expired: u64,
    /// Failures whose message never came again.
    pub attempts_purged: u64,
    /// Closed dead letters that outlived their retention.
    pub dead_letters_purged: u64,
    /// Messages of which chunks were missing for too long; each is a dead letter now.
    pub incomplete_expired: u64,
}

impl<DB: Dialect> Inbox<DB> {
    /// Creates the days to come, forgets the expired ones, and measures the database's clock. Any
    /// number of processes may do it at once; once an hour is plenty. The runner does it by itself.
    ///
    /// # Errors
    /// [`OpenError`]; what was done until then stays done. Not cancel-safe; run it to its end.
    pub async fn maintain(&self) -> Result<Maintained, OpenError> {
        self.refresh().await?;
        let created = self.ensure_days().await?;
        let keep_from = self.window().keep_from();
        let expired = if self.window().retained_from < keep_from.start() {
            DB::expire(self.pool(), self.statements(), keep_from).await?
        } else {
            0
        };
        self.refresh().await?;
        let window = self.window();
        let mut connection = self.acquire("give a connection").await?;
        let attempts_purged =
            DB::purge_attempts(&mut connection, self.statements(), window.oldest_accepted_at())
                .await
                .map_err(StoreError::during("purge old attempts"))?;
        let before = back(window.now, self.options().dead_letter_retention);
        let dead_letters_purged = DB::purge_dead_letters(&mut connection, self.statements(), before)
            .await
            .map_err(StoreError::during("purge closed dead letters"))?;
        drop(connection);
        let incomplete_expired = self.expire_incomplete().await?;
        // They are figures: a role that may not purge them yet does everything else.
        if let Err(error) = self.purge_minutes(window.now).await {
            tracing::debug!(error = error_text(&error), "counts of minutes were not purged");
        }
        telemetry::maintained(created, expired);
        Ok(Maintained { created, expired, attempts_purged, dead_letters_purged, incomplete_expired })
    }

    /// Makes sure that every day of the window can hold rows.
    pub(crate) async fn ensure_days(&self) -> Result<u64, OpenError> {
        let range = self.window().days();
        let mut connection = self.acquire("give a connection").await?;
        self.ensure_range(&mut connection, range).await
    }

    /// Makes sure that a day can hold rows; does nothing for a day before memory begins. On a
    /// connection outside the pool: the caller holds one of the pool's, and a pool of one would
    /// wait for itself.
    pub(crate) async fn ensure_day(&self, day: Day) -> Result<(), OpenError> {
        let failed = StoreError::during;
        let what = "connect to create a partition";
        if DB::DAYS_ARE_IMPLICIT {
            self.learn_partitions([day]);
            return Ok(());
        }
        let mut connection =
            DB::Connection::connect_with(&self.pool().connect_options()).await.map_err(failed(what))?;
        self.refresh_on(&mut connection).await?;
        self.ensure_range(&mut connection, (day, day)).await?;
        connection.close().await.map_err(failed("close the connection that created a partition"))?;
        Ok(())
    }

    async fn ensure_range(
        &self,
        connection: &mut DB::Connection,
        (first, last): (Day, Day),
    ) -> Result<u64, OpenError> {
        let first = first.max(Day::of(self.window().retained_from));
        let failed = StoreError::during;
        let existing = DB::days(connection, self.statements(), (first, last))
            .await
            .map_err(failed("list the inbox's partitions"))?;
        self.learn_partitions(existing.iter().copied());
        let mut missing = first.through(last).filter(|day| !existing.contains(day));
        let Some(first_missing) = missing.next() else { return Ok(0) };
        let last_missing = missing.last().unwrap_or(first_missing);
        let range = (first_missing, last_missing);
        let created = DB::create_days(connection, self.statements(), range).await.map_err(|source| {
            // Only what does not pass by itself needs another role.
            match source.is_transient() {
                true => OpenError::Store(source),
                false => OpenError::DaysMissing { first: first_missing, last: last_missing, source },
            }
        })?;
        // Read what there is now, instead of believing: another process may have expired meanwhile.
        let existing = DB::days(connection, self.statements(), (first, last))
            .await
            .map_err(failed("list the inbox's partitions"))?;
        self.learn_partitions(existing);
        Ok(created)
    }
}
