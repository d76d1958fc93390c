//! Counting failures on PostgreSQL.

use std::time::Duration;

use sqlx::postgres::types::PgInterval;
use sqlx::{PgConnection, Postgres};
use time::OffsetDateTime;

use super::statements::Statements;
use crate::attempts::Attempt;
use crate::dialect::{Key, parts};

impl parts::Attempts for Postgres {
    async fn count_attempt(
        connection: &mut PgConnection,
        statements: &Statements,
        key: Key<'_>,
        error: &str,
        is_counted: bool,
    ) -> Result<(u32, Duration), sqlx::Error> {
        let (attempts, age): (i32, f64) = sqlx::query_as(&statements.count_attempt)
            .bind(key.id)
            .bind(key.consumer)
            .bind(key.scope)
            .bind(error)
            .bind(i32::from(is_counted))
            .fetch_one(connection)
            .await?;
        Ok((attempts.unsigned_abs(), Duration::try_from_secs_f64(age).unwrap_or_default()))
    }

    async fn postpone(
        connection: &mut PgConnection,
        statements: &Statements,
        key: Key<'_>,
        delay: Duration,
    ) -> Result<(), sqlx::Error> {
        let microseconds = i64::try_from(delay.as_micros()).unwrap_or(i64::MAX);
        sqlx::query(&statements.postpone)
            .bind(key.id)
            .bind(key.consumer)
            .bind(key.scope)
            .bind(PgInterval { months: 0, days: 0, microseconds })
            .execute(connection)
            .await?;
        Ok(())
    }

    async fn attempt(
        connection: &mut PgConnection,
        statements: &Statements,
        key: Key<'_>,
    ) -> Result<Option<Attempt>, sqlx::Error> {
        let row: Option<(i32, String, OffsetDateTime, OffsetDateTime)> = sqlx::query_as(&statements.attempt)
            .bind(key.id)
            .bind(key.consumer)
            .bind(key.scope)
            .fetch_optional(connection)
            .await?;
        Ok(row.map(|(attempts, last_error, first_failed_at, next_at)| Attempt {
            attempts: attempts.unsigned_abs(),
            last_error,
            first_failed_at,
            next_at,
        }))
    }

    async fn forget_attempts(
        connection: &mut PgConnection,
        statements: &Statements,
        key: Key<'_>,
        also_counted: bool,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(&statements.forget_attempts)
            .bind(key.id)
            .bind(key.consumer)
            .bind(key.scope)
            .bind(also_counted)
            .execute(connection)
            .await?;
        Ok(())
    }

    async fn purge_attempts(
        connection: &mut PgConnection,
        statements: &Statements,
        before: OffsetDateTime,
    ) -> Result<u64, sqlx::Error> {
        let purged = sqlx::query(&statements.purge_attempts).bind(before).execute(connection).await?;
        Ok(purged.rows_affected())
    }
}
