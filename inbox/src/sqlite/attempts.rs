//! Counts failures on SQLite.

use std::time::Duration;

use sqlx::{Row as _, Sqlite, SqliteConnection, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;
use uuid::fmt::Hyphenated;

use super::statements::{
    ATTEMPT, COUNT_ATTEMPT, FORGET_ATTEMPTS, POSTPONE, PURGE_ATTEMPTS, PUT_DOWN, Statements, TAKE_IN_HAND,
    TAKE_OVER,
};
use super::values;
use crate::attempts::{Attempt, Failed, Forget, InHand, NotedFailure};
use crate::dialect::{Key, parts};

impl parts::Attempts for Sqlite {
    async fn count_attempt(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        key: Key<'_>,
        failed: Failed<'_>,
    ) -> Result<NotedFailure, sqlx::Error> {
        let row = sqlx::query(COUNT_ATTEMPT)
            .bind(values::text(key.id))
            .bind(key.consumer)
            .bind(key.scope)
            .bind(failed.error)
            .bind(i64::from(failed.pause.is_some()))
            .bind(failed.is_returned)
            .fetch_one(connection)
            .await?;
        let age: i64 = row.try_get("age")?;
        Ok(NotedFailure {
            attempts: row.try_get("attempts")?,
            uncounted: row.try_get("uncounted")?,
            first_failed_at: values::time(row.try_get("first_failed_at")?)?,
            age: Duration::from_micros(u64::try_from(age).unwrap_or_default()),
        })
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
            let first_failed_at = values::time(first_failed_at)?;
            let next_at = values::time(next_at)?;
            Ok(Attempt { attempts, last_error, first_failed_at, next_at })
        })
        .transpose()
    }

    async fn forget_attempts(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        keys: &[Key<'_>],
        forget: Forget,
    ) -> Result<(), sqlx::Error> {
        for key in keys {
            sqlx::query(FORGET_ATTEMPTS)
                .bind(values::text(key.id))
                .bind(key.consumer)
                .bind(key.scope)
                .bind(forget.also_counted())
                .bind(forget.also_ends())
                .bind(forget.also_noted())
                .execute(&mut *connection)
                .await?;
            if forget != Forget::All {
                put_down_one(connection, *key, None).await?;
            }
        }
        Ok(())
    }

    async fn take_in_hand(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        keys: &[Key<'_>],
        process: Uuid,
    ) -> Result<Vec<InHand>, sqlx::Error> {
        let mut taken = Vec::with_capacity(keys.len());
        for key in keys {
            let (failures, ends, next_at, owner): (u32, u32, i64, Option<Hyphenated>) =
                sqlx::query_as(TAKE_IN_HAND)
                    .bind(values::text(key.id))
                    .bind(key.consumer)
                    .bind(key.scope)
                    .bind(values::text(process))
                    .fetch_one(&mut *connection)
                    .await?;
            let owner = owner.map(Hyphenated::into_uuid);
            taken.push(InHand { failures, ends, owner, next_at: values::time(next_at)? });
        }
        Ok(taken)
    }

    /// Returns false: the asking transaction is the only writer, and a handler's transaction writes
    /// too.
    async fn is_being_handled(
        tx: Transaction<'static, Self>,
        _statements: &Statements,
        _key: Key<'_>,
    ) -> Result<bool, sqlx::Error> {
        tx.rollback().await?;
        Ok(false)
    }

    async fn take_over(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        key: Key<'_>,
        owner: Uuid,
        process: Uuid,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(TAKE_OVER)
            .bind(values::text(key.id))
            .bind(key.consumer)
            .bind(key.scope)
            .bind(values::text(owner))
            .bind(values::text(process))
            .execute(connection)
            .await?;
        Ok(())
    }

    async fn put_down(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        keys: &[Key<'_>],
        process: Uuid,
    ) -> Result<(), sqlx::Error> {
        for key in keys {
            put_down_one(connection, *key, Some(process)).await?;
        }
        Ok(())
    }

    async fn purge_attempts(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        before: OffsetDateTime,
        limit: u32,
    ) -> Result<u64, sqlx::Error> {
        let purge = sqlx::query(PURGE_ATTEMPTS).bind(values::micros(before)).bind(limit);
        let purged = purge.execute(connection).await?;
        Ok(purged.rows_affected())
    }
}

/// Removes the note of one process, or of any process when `process` is `None`.
async fn put_down_one(
    connection: &mut SqliteConnection,
    key: Key<'_>,
    process: Option<Uuid>,
) -> Result<(), sqlx::Error> {
    sqlx::query(PUT_DOWN)
        .bind(values::text(key.id))
        .bind(key.consumer)
        .bind(key.scope)
        .bind(process.map(values::text))
        .execute(connection)
        .await?;
    Ok(())
}
