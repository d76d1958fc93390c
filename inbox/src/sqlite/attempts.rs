//! Counting failures on SQLite.

use std::time::Duration;

use sqlx::{Sqlite, SqliteConnection};
use time::OffsetDateTime;

use super::statements::{ATTEMPT, COUNT_ATTEMPT, FORGET_ATTEMPTS, POSTPONE, PURGE_ATTEMPTS, Statements};
use super::values;
use crate::attempts::Attempt;
use crate::dialect::{Key, parts};

impl parts::Attempts for Sqlite {
    async fn count_attempt(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        key: Key<'_>,
        error: &str,
        is_counted: bool,
    ) -> Result<(u32, Duration), sqlx::Error> {
        let (attempts, age): (u32, i64) = sqlx::query_as(COUNT_ATTEMPT)
            .bind(values::text(key.id))
            .bind(key.consumer)
            .bind(key.scope)
            .bind(error)
            .bind(i64::from(is_counted))
            .fetch_one(connection)
            .await?;
        Ok((attempts, Duration::from_micros(u64::try_from(age).unwrap_or_default())))
    }

    async fn postpone(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        key: Key<'_>,
        delay: Duration,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(POSTPONE)
            .bind(values::text(key.id))
            .bind(key.consumer)
            .bind(key.scope)
            .bind(values::span(delay))
            .execute(connection)
            .await?;
        Ok(())
    }

    async fn attempt(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        key: Key<'_>,
    ) -> Result<Option<Attempt>, sqlx::Error> {
        let row: Option<(u32, String, i64, i64)> = sqlx::query_as(ATTEMPT)
            .bind(values::text(key.id))
            .bind(key.consumer)
            .bind(key.scope)
            .fetch_optional(connection)
            .await?;
        row.map(|(attempts, last_error, first_failed_at, next_at)| {
            let (first_failed_at, next_at) = (values::time(first_failed_at)?, values::time(next_at)?);
            Ok(Attempt { attempts, last_error, first_failed_at, next_at })
        })
        .transpose()
    }

    async fn forget_attempts(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        key: Key<'_>,
        also_counted: bool,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(FORGET_ATTEMPTS)
            .bind(values::text(key.id))
            .bind(key.consumer)
            .bind(key.scope)
            .bind(also_counted)
            .execute(connection)
            .await?;
        Ok(())
    }

    async fn purge_attempts(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        before: OffsetDateTime,
    ) -> Result<u64, sqlx::Error> {
        let purged = sqlx::query(PURGE_ATTEMPTS).bind(values::micros(before)).execute(connection).await?;
        Ok(purged.rows_affected())
    }
}
