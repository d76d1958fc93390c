//! Retention of message ids on PostgreSQL.

use std::time::Duration;

use message::Backoff;
use migrations::SqlErrorKind;
use migrations::query::Query;
use sqlx::{PgConnection, PgPool, Postgres};
use time::Date;

use super::statements::Statements;
use crate::day::{Day, DayRange};
use crate::dialect::parts;
use crate::store_error::StoreError;
use crate::tables::Tables;

const PREFIX: &str = "inbox_message_";

/// Maximum tries to create or drop days while others hold the locks, before the next maintenance
/// tries again.
const TRIES: u32 = 8;
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_secs(2) };

/// Returns whether to try a statement again because it gave way to others: its function waits for
/// locks only briefly. Sleeps until the next try is due.
async fn is_to_be_tried_again(error: &sqlx::Error, attempt: u32) -> bool {
    let is_due = SqlErrorKind::of(error) == SqlErrorKind::Conflict && attempt < TRIES;
    if is_due {
        let delay = BACKOFF.delay(attempt, rand::random());
        tracing::debug!(attempt, ?delay, "partitions of the inbox are in use; retrying");
        tokio::time::sleep(delay).await;
    }
    is_due
}

impl parts::Retention for Postgres {
    const DAYS_ARE_IMPLICIT: bool = false;

    async fn begin_memory(
        connection: &mut PgConnection,
        tables: &Tables<Self>,
        from: Day,
    ) -> Result<(), sqlx::Error> {
        Query::<Self>::new(&tables.own.begin_memory).bind(from.start()).run(connection).await.map(drop)
    }

    async fn days(
        connection: &mut PgConnection,
        tables: &Tables<Self>,
        DayRange { first, last }: DayRange,
    ) -> Result<Vec<Day>, sqlx::Error> {
        let mut days = partitions(connection, &tables.own).await?;
        days.retain(|day| (first..=last).contains(day));
        Ok(days)
    }

    async fn create_days(
        connection: &mut PgConnection,
        tables: &Tables<Self>,
        DayRange { first, last }: DayRange,
    ) -> Result<u64, StoreError> {
        let mut attempt = 1;
        loop {
            let created = sqlx::query_scalar::<_, i64>(&tables.own.create_days)
                .bind(first.date())
                .bind(last.date())
                .fetch_one(&mut *connection)
                .await;
            match created {
                Err(error) if is_to_be_tried_again(&error, attempt).await => attempt += 1,
                created => {
                    let failed = StoreError::during("create partitions of the inbox");
                    return created.map(i64::unsigned_abs).map_err(failed);
                }
            }
        }
    }

    async fn expire(pool: &PgPool, tables: &Tables<Self>, keep_from: Day) -> Result<u64, StoreError> {
        let mut attempt = 1;
        let mut expired = None;
        // The function leaves a day that is in use to its next call, and fails for it only if there
        // is nothing else to do.
        loop {
            match expire_once(pool, &tables.own, keep_from).await {
                Ok(0) if expired.is_some() => return Ok(expired.unwrap_or_default()),
                Ok(days) => expired = Some(expired.unwrap_or_default() + days),
                Err(error) if is_to_be_tried_again(&error, attempt).await => attempt += 1,
                Err(error) => return Err(StoreError::during("drop expired days")(error)),
            }
        }
    }
}

/// Drops the expired days and moves the beginning of memory, in one transaction.
async fn expire_once(pool: &PgPool, statements: &Statements, keep_from: Day) -> Result<u64, sqlx::Error> {
    let dropped: Vec<Date> =
        sqlx::query_scalar(&statements.expire_days).bind(keep_from.date()).fetch_all(pool).await?;
    for day in &dropped {
        tracing::info!(%day, "inbox day expired");
    }
    Ok(dropped.len() as u64)
}

async fn partitions(connection: &mut PgConnection, statements: &Statements) -> Result<Vec<Day>, sqlx::Error> {
    let names: Vec<String> = sqlx::query_scalar(&statements.partitions).fetch_all(connection).await?;
    let mut days = Vec::with_capacity(names.len());
    for name in names {
        match name.strip_prefix(PREFIX).and_then(Day::from_suffix) {
            Some(day) => days.push(day),
            None => {
                tracing::warn!(
                    partition = name,
                    "inbox_message has a partition that the inbox did not create"
                );
            }
        }
    }
    Ok(days)
}
