//! Held messages on SQLite.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row, Sqlite, SqliteConnection};
use time::OffsetDateTime;
use uuid::fmt::Hyphenated;

use super::dead_letters::decode;
use super::statements::{CLOSED_SINCE, FAIL_HELD, HELD, HELD_FIRSTS, HOLDER, HOLDER_BEFORE, Statements};
use super::values;
use crate::dead_letter::{DeadLetter, DeadLetterId};
use crate::dialect::parts;
use crate::held_keys::{Closed, HeldFirst, HeldKey};
use crate::store_dead_letter::Cause;

fn letter_id(id: Hyphenated) -> DeadLetterId {
    DeadLetterId(id.into_uuid())
}

impl parts::HeldKeys for Sqlite {
    /// Looks up one by one: SQLite runs in this process, so there are no round trips to save.
    async fn holders(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        consumer: &str,
        keys: &[HeldKey],
    ) -> Result<Vec<Option<DeadLetterId>>, sqlx::Error> {
        let mut holders = Vec::with_capacity(keys.len());
        for HeldKey { tenant, topic, key } in keys {
            let holder: Option<Hyphenated> = sqlx::query_scalar(HOLDER)
                .bind(consumer)
                .bind(tenant)
                .bind(topic)
                .bind(key)
                .fetch_optional(&mut *connection)
                .await?;
            holders.push(holder.map(letter_id));
        }
        Ok(holders)
    }

    async fn holder_before(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        id: DeadLetterId,
    ) -> Result<Option<DeadLetterId>, sqlx::Error> {
        let holder: Option<Hyphenated> =
            sqlx::query_scalar(HOLDER_BEFORE).bind(values::text(id.0)).fetch_optional(connection).await?;
        Ok(holder.map(letter_id))
    }

    async fn held_firsts(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        consumer: &str,
        after: Option<&HeldKey>,
        limit: u32,
    ) -> Result<Vec<HeldFirst>, sqlx::Error> {
        // No topic is empty, so every key comes after three empty texts.
        let text = |text: fn(&HeldKey) -> &str| after.map_or("", text);
        let rows = sqlx::query(HELD_FIRSTS)
            .bind(consumer)
            .bind(text(|key| &key.tenant))
            .bind(text(|key| &key.topic))
            .bind(text(|key| &key.key))
            .bind(i64::from(limit))
            .fetch_all(connection)
            .await?;
        let first = |row: &SqliteRow| HeldFirst::of_row(row, letter_id(row.try_get("id")?));
        rows.iter().map(first).collect()
    }

    async fn closed_since(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        since: OffsetDateTime,
        limit: u32,
    ) -> Result<Vec<Closed>, sqlx::Error> {
        let closed = sqlx::query(CLOSED_SINCE).bind(values::micros(since)).bind(i64::from(limit));
        let closed = closed.fetch_all(connection).await?;
        closed.iter().map(Closed::of_row).collect()
    }

    /// Needs no lock: a writing transaction excludes all others.
    async fn lock_held(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        id: DeadLetterId,
    ) -> Result<Option<DeadLetter>, sqlx::Error> {
        let row = sqlx::query(HELD).bind(values::text(id.0)).fetch_optional(connection).await?;
        row.as_ref().map(decode).transpose()
    }

    async fn fail_held(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        id: DeadLetterId,
        Cause { reason, error, attempts }: &Cause,
    ) -> Result<u64, sqlx::Error> {
        let failed = sqlx::query(FAIL_HELD)
            .bind(values::text(id.0))
            .bind(reason.as_str())
            .bind(error)
            .bind(attempts)
            .execute(connection)
            .await?;
        Ok(failed.rows_affected())
    }
}
