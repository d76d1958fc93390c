//! Remembering and forgetting on PostgreSQL.

use std::time::Duration;

use migrations::{Identifier, Template};
use sqlx::{PgConnection, PgPool, Postgres};
use time::OffsetDateTime;

use super::statements::{ATTACH, CREATE, DROP, LOCK_TIMEOUT, Statements};
use crate::backoff::Backoff;
use crate::day::Day;
use crate::dialect::{Reading, parts};
use crate::store_error::{StoreError, Trouble};

const PREFIX: &str = "inbox_message_";

/// How often a drop gives way to open transactions before it is left for the next maintenance.
const DROP_TRIES: u32 = 8;
const DROP_BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_secs(2) };

impl parts::Retention for Postgres {
    const DAYS_ARE_IMPLICIT: bool = false;

    async fn read_clock(
        connection: &mut PgConnection,
        statements: &Statements,
    ) -> Result<Reading, sqlx::Error> {
        let (now, retained_from) = sqlx::query_as(&statements.clock).fetch_one(connection).await?;
        Ok(Reading { now, retained_from })
    }

    async fn begin_memory(
        connection: &mut PgConnection,
        statements: &Statements,
        from: Day,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(&statements.begin_memory).bind(from.start()).execute(connection).await?;
        Ok(())
    }

    async fn days(
        connection: &mut PgConnection,
        statements: &Statements,
        (first, last): (Day, Day),
    ) -> Result<Vec<Day>, sqlx::Error> {
        let mut days = partitions(connection, statements).await?;
        days.retain(|day| (first..=last).contains(day));
        Ok(days)
    }

    async fn create_days(
        connection: &mut PgConnection,
        statements: &Statements,
        (first, last): (Day, Day),
    ) -> Result<u64, sqlx::Error> {
        sqlx::query(&statements.lock).execute(&mut *connection).await?;
        // Under the lock, so that no day is made again that is being dropped at this moment.
        let retained_from: Option<OffsetDateTime> =
            sqlx::query_scalar(&statements.retained_from).fetch_optional(&mut *connection).await?;
        let existing = partitions(connection, statements).await?;
        let mut created = 0;
        for day in first.through(last) {
            if existing.contains(&day) || retained_from.is_some_and(|from| day.start() < from) {
                continue;
            }
            let (from, to) = day.bounds();
            let name = partition(day)?;
            for template in [CREATE, ATTACH] {
                let statement = Template::new(template)
                    .schema(statements.schema.as_ref())
                    .identifier("part", &name)
                    .uuid("from", from)
                    .uuid("to", to)
                    .render();
                sqlx::query(&statement).persistent(false).execute(&mut *connection).await?;
            }
            created += 1;
        }
        Ok(created)
    }

    async fn expire(pool: &PgPool, statements: &Statements, keep_from: Day) -> Result<u64, StoreError> {
        let mut attempt = 1;
        loop {
            match expire_once(pool, statements, keep_from).await {
                Err(error) if Trouble::of(&error) == Trouble::Conflict && attempt < DROP_TRIES => {
                    let delay = DROP_BACKOFF.delay(attempt, rand::random());
                    tracing::debug!(attempt, ?delay, "expired days are in use; trying again");
                    tokio::time::sleep(delay).await;
                    attempt += 1;
                }
                result => return result.map_err(StoreError::during("drop expired days")),
            }
        }
    }
}

/// Drops the expired days and moves the beginning of memory, in one transaction.
async fn expire_once(pool: &PgPool, statements: &Statements, keep_from: Day) -> Result<u64, sqlx::Error> {
    let mut tx = pool.begin().await?;
    sqlx::query(LOCK_TIMEOUT).execute(&mut *tx).await?;
    sqlx::query(&statements.lock).execute(&mut *tx).await?;
    sqlx::query(&statements.retain_from).bind(keep_from.start()).execute(&mut *tx).await?;
    let mut dropped = 0;
    for day in partitions(&mut tx, statements).await?.into_iter().filter(|day| *day < keep_from) {
        let schema = statements.schema.as_ref();
        let statement = Template::new(DROP).schema(schema).identifier("part", &partition(day)?).render();
        sqlx::query(&statement).persistent(false).execute(&mut *tx).await?;
        tracing::info!(%day, "inbox day expired");
        dropped += 1;
    }
    tx.commit().await?;
    Ok(dropped)
}

async fn partitions(connection: &mut PgConnection, statements: &Statements) -> Result<Vec<Day>, sqlx::Error> {
    let names: Vec<String> = sqlx::query_scalar(&statements.partitions).fetch_all(connection).await?;
    let mut days = Vec::with_capacity(names.len());
    for name in names {
        match name.strip_prefix(PREFIX).and_then(Day::from_suffix) {
            Some(day) => days.push(day),
            None => {
                tracing::warn!(partition = name, "a partition of inbox_message that the inbox did not make");
            }
        }
    }
    Ok(days)
}

fn partition(day: Day) -> Result<Identifier, sqlx::Error> {
    Identifier::new(format!("{PREFIX}{}", day.suffix())).map_err(|error| sqlx::Error::Encode(error.into()))
}
