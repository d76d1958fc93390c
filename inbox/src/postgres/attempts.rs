//! Counts failures on PostgreSQL.

use std::collections::HashMap;
use std::time::Duration;

use message::Fingerprint;
use sqlx::postgres::types::PgInterval;
use sqlx::{PgConnection, Postgres, Row as _, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;

use super::guard::{Columns, has_code};
use super::statements::Statements;
use crate::attempts::{Attempt, Failed, Forget, InHand, NotedFailure};
use crate::dialect::{Content, Key, Mark, NewRow, parts};

/// SQLSTATE of a lock wait that reached its timeout.
const LOCK_NOT_AVAILABLE: &str = "55P03";
/// How often notes are taken and read. A note that another process had, and removed before it was
/// read, is taken the next time.
const TAKE_MAX: usize = 5;

impl parts::Attempts for Postgres {
    async fn count_attempt(
        connection: &mut PgConnection,
        statements: &Statements,
        key: Key<'_>,
        failed: Failed<'_>,
    ) -> Result<NotedFailure, sqlx::Error> {
        let row = sqlx::query(&statements.count_attempt)
            .bind(key.id)
            .bind(key.consumer)
            .bind(key.scope)
            .bind(failed.error)
            .bind(i32::from(failed.pause.is_some()))
            .bind(failed.is_returned)
            .fetch_one(connection)
            .await?;
        Ok(NotedFailure {
            attempts: row.try_get::<i32, _>("attempts")?.unsigned_abs(),
            uncounted: row.try_get::<i32, _>("uncounted")?.unsigned_abs(),
            first_failed_at: row.try_get("first_failed_at")?,
            age: Duration::try_from_secs_f64(row.try_get("age")?).unwrap_or_default(),
        })
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
        keys: &[Key<'_>],
        forget: Forget,
    ) -> Result<(), sqlx::Error> {
        let Some(Key { consumer, .. }) = keys.first() else { return Ok(()) };
        let Columns { ids, scopes } = Columns::of(keys);
        let forgetting = sqlx::query(&statements.forget_attempts).bind(consumer).bind(&ids).bind(&scopes);
        let forgetting =
            forgetting.bind(forget.also_counted()).bind(forget.also_ends()).bind(forget.also_noted());
        forgetting.execute(&mut *connection).await?;
        if forget != Forget::All {
            let put_down = sqlx::query(&statements.put_down_counted).bind(consumer).bind(&ids).bind(&scopes);
            put_down.execute(connection).await?;
        }
        Ok(())
    }

    async fn take_in_hand(
        connection: &mut PgConnection,
        statements: &Statements,
        keys: &[Key<'_>],
        process: Uuid,
    ) -> Result<Vec<InHand>, sqlx::Error> {
        let Some(Key { consumer, .. }) = keys.first() else { return Ok(Vec::new()) };
        let Columns { ids, scopes } = Columns::of(keys);
        let mut taken = HashMap::new();
        for statement in [&statements.take_in_hand, &statements.taken].into_iter().cycle().take(2 * TAKE_MAX)
        {
            let rows: Vec<(Uuid, String, i32, i32, OffsetDateTime, Option<Uuid>)> = sqlx::query_as(statement)
                .bind(consumer)
                .bind(&ids)
                .bind(&scopes)
                .bind(process)
                .fetch_all(&mut *connection)
                .await?;
            // RETURNING has no order of its own.
            taken.extend(rows.into_iter().map(|(id, scope, attempts, ends, next_at, owner)| {
                let failures = attempts.unsigned_abs();
                let ends = ends.unsigned_abs();
                ((id, scope), InHand { failures, ends, owner, next_at })
            }));
            let place = |key: &Key<'_>| taken.get(&(key.id, key.scope.to_owned())).copied();
            if let Some(taken) = keys.iter().map(place).collect() {
                return Ok(taken);
            }
        }
        Err(sqlx::Error::RowNotFound)
    }

    /// Tries to insert the row. The process that handles the message has inserted it without
    /// committing, so another insert waits; nothing else shows that. The answer is the same behind
    /// a pooler, and for a process of any version.
    async fn is_being_handled(
        mut tx: Transaction<'static, Self>,
        statements: &Statements,
        key: Key<'_>,
    ) -> Result<bool, sqlx::Error> {
        sqlx::query(&statements.wait_for_a_moment).execute(&mut *tx).await?;
        let content = Content { fingerprint: Fingerprint::from([0; 32]), source: "", canonical: None };
        let row = NewRow { key, content };
        let inserted = <Self as parts::Guards>::insert(&mut tx, statements, row, Mark::No).await;
        let is_locked = inserted.as_ref().err().is_some_and(|error| has_code(error, LOCK_NOT_AVAILABLE));
        tx.rollback().await?;
        if is_locked { Ok(true) } else { inserted.map(|_| false) }
    }

    async fn take_over(
        connection: &mut PgConnection,
        statements: &Statements,
        key: Key<'_>,
        owner: Uuid,
        process: Uuid,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(&statements.take_over)
            .bind(key.id)
            .bind(key.consumer)
            .bind(key.scope)
            .bind(owner)
            .bind(process)
            .execute(connection)
            .await?;
        Ok(())
    }

    async fn put_down(
        connection: &mut PgConnection,
        statements: &Statements,
        keys: &[Key<'_>],
        process: Uuid,
    ) -> Result<(), sqlx::Error> {
        let Some(Key { consumer, .. }) = keys.first() else { return Ok(()) };
        let Columns { ids, scopes } = Columns::of(keys);
        let put_down = sqlx::query(&statements.put_down).bind(consumer).bind(&ids).bind(&scopes);
        put_down.bind(process).execute(connection).await?;
        Ok(())
    }

    async fn purge_attempts(
        connection: &mut PgConnection,
        statements: &Statements,
        before: OffsetDateTime,
        limit: u32,
    ) -> Result<u64, sqlx::Error> {
        let purge = sqlx::query(&statements.purge_attempts).bind(before).bind(i64::from(limit));
        let purged = purge.execute(connection).await?;
        Ok(purged.rows_affected())
    }
}
