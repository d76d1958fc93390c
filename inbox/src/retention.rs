//! Retention: remembers for as long as promised, and forgets without a gap.
//!
//! A day is forgotten as a whole, and in the same step the beginning of memory moves behind it.
//! Every process refuses ids from before that moment, whatever its own retention: on PostgreSQL
//! because no partition holds them and none is ever created for them again, on SQLite because the
//! insert itself compares. So processes with different settings cannot open a gap; the shortest
//! retention wins.

use message::back;
use sqlx::Connection;
use time::OffsetDateTime;

use crate::day::{Day, DayRange};
use crate::dialect::Dialect;
use crate::error::OpenError;
use crate::error_text::error_text;
use crate::ids::ConsumerName;
use crate::inbox::Inbox;
use crate::store_error::{StoreError, lost_day};
use crate::telemetry;

/// Counts of what [`Inbox::maintain`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Maintained {
    /// Days whose partitions were created in this run (PostgreSQL).
    pub created: u64,
    /// Days (PostgreSQL) or rows (SQLite) that were forgotten.
    pub expired: u64,
    /// Failures of messages that took effect since, or were never delivered again.
    pub attempts_purged: u64,
    /// Deleted closed dead letters whose retention had ended.
    pub dead_letters_purged: u64,
    /// Decisions of operators that outlived their retention.
    pub decisions_purged: u64,
    /// Messages whose chunks were missing for too long; each became a dead letter.
    pub incomplete_expired: u64,
}

/// Maximum lead of the database's clock that is not reported.
const CLOCKS_APART_MAX: time::Duration = time::Duration::minutes(5);

/// Maximum number of rows that one statement purges.
const PURGED_MAX: u32 = 1_000;

/// Maximum number of statements that purge decisions in one maintenance.
const SWEEPS_MAX: u32 = 20;

/// The parts of one maintenance. A part that fails does not stop the others.
#[derive(Default)]
struct Parts {
    /// The first failure.
    failed: Option<OpenError>,
}

impl Parts {
    fn done(&mut self, part: &'static str, outcome: Result<u64, OpenError>) -> u64 {
        outcome.unwrap_or_else(|error| {
            tracing::warn!(part, error = error_text(&error), "a part of the inbox's maintenance failed");
            telemetry::not_maintained(part);
            self.failed.get_or_insert(error);
            0
        })
    }
}

impl<DB: Dialect> Inbox<DB> {
    /// Creates the coming days, forgets the expired ones, expires incomplete messages of every
    /// consumer, and reads the database's clock. Any number of processes may do this at once; once
    /// an hour is plenty. The runner does it for its own consumer automatically.
    ///
    /// # Errors
    /// The first [`OpenError`] of a part; the other parts ran, and their results stay. Not
    /// cancel-safe; run it to its end.
    pub async fn maintain(&self) -> Result<Maintained, OpenError> {
        self.maintain_for(None).await
    }

    /// Does the same for a consumer, which ignores recent incomplete messages of others.
    pub(crate) async fn maintain_for(
        &self,
        consumer: Option<&ConsumerName>,
    ) -> Result<Maintained, OpenError> {
        self.refresh().await?;
        let mut parts = Parts::default();
        let created = parts.done("create days", self.ensure_days().await);
        let expired = parts.done("forget days", self.forget_days().await);
        parts.done("read the clock", self.refresh().await.map(|()| 0).map_err(OpenError::from));
        let attempts_purged = parts.done("purge attempts", self.purge_attempts().await);
        let dead_letters_purged = parts.done("purge dead letters", self.purge_dead_letters().await);
        let decisions_purged = self.purge_decisions().await;
        let expiry = self.expire_incomplete(consumer).await.map_err(OpenError::from);
        let incomplete_expired = parts.done("expire incomplete messages", expiry);
        // A failure is ignored: these counts are only informative, and a role may lack the right to
        // purge them.
        if let Err(error) = self.purge_minutes(self.window().now).await {
            tracing::debug!(error = error_text(&error), "could not delete old counts of consumers");
        }
        telemetry::maintained(created, expired);
        match parts.failed {
            Some(error) => Err(error),
            None => Ok(Maintained {
                created,
                expired,
                attempts_purged,
                dead_letters_purged,
                decisions_purged,
                incomplete_expired,
            }),
        }
    }

    /// Forgets the days that are older than the retention of this process.
    async fn forget_days(&self) -> Result<u64, OpenError> {
        let window = self.window();
        let settled = self.settled_window();
        let keep_from = settled.keep_from();
        let is_due = DB::DAYS_ARE_IMPLICIT
            || window.retained_from < keep_from.start()
            || self.has_days_before(window.retained_from).await?;
        let expired = if is_due { DB::expire(self.pool(), self.tables(), keep_from).await? } else { 0 };
        if window.now - settled.now > CLOCKS_APART_MAX {
            return Err(OpenError::ClocksDiffer { database: window.now, process: settled.now });
        }
        Ok(expired)
    }

    /// Returns whether days remain that were emptied but could not be dropped then.
    async fn has_days_before(&self, retained_from: OffsetDateTime) -> Result<bool, OpenError> {
        let first = Day::of(OffsetDateTime::UNIX_EPOCH);
        let last = Day::of(retained_from - time::Duration::DAY);
        let mut connection = self.acquire("give a connection").await?;
        let left = DB::days(&mut connection, self.tables(), DayRange { first, last })
            .await
            .map_err(StoreError::during("list the inbox's partitions"))?;
        Ok(!left.is_empty())
    }

    async fn purge_attempts(&self) -> Result<u64, OpenError> {
        let before = self.settled_window().oldest_accepted_at();
        let mut connection = self.acquire("give a connection").await?;
        let mut purged = 0;
        loop {
            let rows = self
                .tables()
                .purge_attempts(&mut connection, before, PURGED_MAX)
                .await
                .map_err(StoreError::during("purge old attempts"))?;
            purged += rows;
            if rows < u64::from(PURGED_MAX) {
                return Ok(purged);
            }
        }
    }

    async fn purge_dead_letters(&self) -> Result<u64, OpenError> {
        let before = back(self.settled_window().now, self.options().dead_letter_retention);
        let mut connection = self.acquire("give a connection").await?;
        let mut purged = 0;
        loop {
            let rows = self
                .tables()
                .purge_dead_letters(&mut connection, before, PURGED_MAX)
                .await
                .map_err(StoreError::during("purge closed dead letters"))?;
            purged += rows;
            if rows < u64::from(PURGED_MAX) {
                return Ok(purged);
            }
        }
    }

    /// Purges old decisions. Runs at most [`SWEEPS_MAX`] statements; the next maintenance does the
    /// rest. Ignores failures, because a role may lack the right to purge them.
    async fn purge_decisions(&self) -> u64 {
        let before = back(self.settled_window().now, self.options().audit_retention);
        let mut purged = 0;
        for _ in 0..SWEEPS_MAX {
            let batch = async {
                let mut connection = self.acquire("give a connection").await?;
                let purge = self.tables().audit.purge::<DB>(&mut connection, before, PURGED_MAX);
                purge.await.map_err(StoreError::during("purge old decisions"))
            };
            match batch.await {
                Ok(rows) => {
                    purged += rows;
                    if rows < u64::from(PURGED_MAX) {
                        break;
                    }
                }
                Err(error) => {
                    tracing::debug!(error = error_text(&error), "could not delete old decisions");
                    break;
                }
            }
        }
        purged
    }

    /// Makes sure that every day of the window can hold rows.
    pub(crate) async fn ensure_days(&self) -> Result<u64, OpenError> {
        let (first, last) = self.window().days(self.options().days_ahead);
        let mut connection = self.acquire("give a connection").await?;
        self.ensure_range(&mut connection, DayRange { first, last }).await
    }

    /// Learns which days of the window can hold rows, and creates none.
    pub(crate) async fn read_partitions(&self) -> Result<(), StoreError> {
        let (first, last) = self.window().days(self.options().days_ahead);
        let first = first.max(Day::of(self.window().retained_from));
        let mut connection = self.acquire("give a connection").await?;
        let existing = DB::days(&mut connection, self.tables(), DayRange { first, last })
            .await
            .map_err(StoreError::during("list the inbox's partitions"))?;
        self.learn_partitions(existing);
        Ok(())
    }

    /// Makes sure that a day can hold rows; does nothing for a day before memory begins. Uses a
    /// connection outside the pool: the caller holds a connection of the pool, so with a pool of
    /// one it would wait forever.
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
        self.ensure_range(&mut connection, DayRange { first: day, last: day }).await?;
        connection.close().await.map_err(failed("close the connection that created a partition"))?;
        Ok(())
    }

    async fn ensure_range(
        &self,
        connection: &mut DB::Connection,
        DayRange { first, last }: DayRange,
    ) -> Result<u64, OpenError> {
        let wanted = DayRange { first: first.max(Day::of(self.window().retained_from)), last };
        let failed = StoreError::during;
        let existing = DB::days(connection, self.tables(), wanted)
            .await
            .map_err(failed("list the inbox's partitions"))?;
        self.learn_partitions(existing.iter().copied());
        let mut days = wanted.first.through(wanted.last).filter(|day| !existing.contains(day));
        let Some(first) = days.next() else { return Ok(0) };
        let missing = DayRange { first, last: days.last().unwrap_or(first) };
        let created = DB::create_days(connection, self.tables(), missing).await.map_err(|source| {
            match lost_day(&source) {
                Some(day) => OpenError::DayLost { day, source },
                // Only a permanent error needs another role.
                None if source.is_transient() => OpenError::Store(source),
                None => OpenError::DaysMissing { first: missing.first, last: missing.last, source },
            }
        })?;
        // Read the days again: another process may have expired some meanwhile.
        let existing = DB::days(connection, self.tables(), wanted)
            .await
            .map_err(failed("list the inbox's partitions"))?;
        self.learn_partitions(existing);
        Ok(created)
    }
}
