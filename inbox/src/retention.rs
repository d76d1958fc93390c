//! Remembering for as long as promised, and forgetting without a hole.
//!
//! A day is forgotten whole, and in the same step the beginning of memory moves behind it. Ids from
//! before that moment are refused by every process, whatever its own retention: on PostgreSQL
//! because no partition holds them and none is ever created for them again, on SQLite because the
//! insert itself compares. So processes with different settings cannot open a hole; the shortest
//! retention wins.

use sqlx::Connection;
use time::OffsetDateTime;

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
    /// Decisions of operators that outlived their retention.
    pub decisions_purged: u64,
    /// Messages of which chunks were missing for too long; each is a dead letter now.
    pub incomplete_expired: u64,
}

/// How far the database's clock may be ahead before it is reported.
const CLOCKS_APART_MAX: time::Duration = time::Duration::minutes(5);

/// Rows that one statement purges at most.
const PURGED_MAX: u32 = 1_000;

/// Statements of one maintenance that purge decisions at most.
const SWEEPS_MAX: u32 = 20;

/// The parts of one maintenance. None keeps the others from their turn.
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
    /// Creates the days to come, forgets the expired ones, and measures the database's clock. Any
    /// number of processes may do it at once; once an hour is plenty. The runner does it by itself.
    ///
    /// # Errors
    /// The first [`OpenError`] of a part; every other part was done, and what was done stays done.
    /// Not cancel-safe; run it to its end.
    pub async fn maintain(&self) -> Result<Maintained, OpenError> {
        self.refresh().await?;
        let mut parts = Parts::default();
        let created = parts.done("create days", self.ensure_days().await);
        let expired = parts.done("forget days", self.forget_days().await);
        parts.done("read the clock", self.refresh().await.map(|()| 0).map_err(OpenError::from));
        let attempts_purged = parts.done("purge attempts", self.purge_attempts().await);
        let dead_letters_purged = parts.done("purge dead letters", self.purge_dead_letters().await);
        let decisions_purged = self.purge_decisions().await;
        let expiry = self.expire_incomplete().await.map_err(OpenError::from);
        let incomplete_expired = parts.done("expire incomplete messages", expiry);
        // They are figures: a role that may not purge them yet does everything else.
        if let Err(error) = self.purge_minutes(self.window().now).await {
            tracing::debug!(error = error_text(&error), "counts of minutes were not purged");
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

    /// Forgets the days that lie before the retention of this process.
    async fn forget_days(&self) -> Result<u64, OpenError> {
        let (window, settled) = (self.window(), self.settled_window());
        let keep_from = settled.keep_from();
        let is_due = DB::DAYS_ARE_IMPLICIT
            || window.retained_from < keep_from.start()
            || self.has_days_before(window.retained_from).await?;
        let expired = if is_due { DB::expire(self.pool(), self.statements(), keep_from).await? } else { 0 };
        if window.now - settled.now > CLOCKS_APART_MAX {
            return Err(OpenError::ClocksDiffer { database: window.now, process: settled.now });
        }
        Ok(expired)
    }

    /// Whether days are left that were emptied and could not be dropped then.
    async fn has_days_before(&self, retained_from: OffsetDateTime) -> Result<bool, OpenError> {
        let first = Day::of(OffsetDateTime::UNIX_EPOCH);
        let last = Day::of(retained_from - time::Duration::DAY);
        let mut connection = self.acquire("give a connection").await?;
        let left = DB::days(&mut connection, self.statements(), (first, last))
            .await
            .map_err(StoreError::during("list the inbox's partitions"))?;
        Ok(!left.is_empty())
    }

    async fn purge_attempts(&self) -> Result<u64, OpenError> {
        let before = self.settled_window().oldest_accepted_at();
        let mut connection = self.acquire("give a connection").await?;
        let mut purged = 0;
        loop {
            let rows = DB::purge_attempts(&mut connection, self.statements(), before, PURGED_MAX)
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
            let rows = DB::purge_dead_letters(&mut connection, self.statements(), before, PURGED_MAX)
                .await
                .map_err(StoreError::during("purge closed dead letters"))?;
            purged += rows;
            if rows < u64::from(PURGED_MAX) {
                return Ok(purged);
            }
        }
    }

    /// At most [`SWEEPS_MAX`] statements: what is left has time until the next maintenance. A role
    /// that may not do it yet does everything else.
    async fn purge_decisions(&self) -> u64 {
        let before = back(self.settled_window().now, self.options().audit_retention);
        let mut purged = 0;
        for _ in 0..SWEEPS_MAX {
            let batch = async {
                let mut connection = self.acquire("give a connection").await?;
                DB::purge_decisions(&mut connection, self.statements(), before, PURGED_MAX)
                    .await
                    .map_err(StoreError::during("purge old decisions"))
            };
            match batch.await {
                Ok(rows) => {
                    purged += rows;
                    if rows < u64::from(PURGED_MAX) {
                        break;
                    }
                }
                Err(error) => {
                    tracing::debug!(error = error_text(&error), "old decisions were not purged");
                    break;
                }
            }
        }
        purged
    }

    /// Makes sure that every day of the window can hold rows.
    pub(crate) async fn ensure_days(&self) -> Result<u64, OpenError> {
        let range = self.window().days(self.options().days_ahead);
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
