//! Held messages on PostgreSQL.

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Postgres, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use super::dead_letters::decode;
use super::statements::Statements;
use crate::dead_letter::{DeadLetter, DeadLetterId};
use crate::dialect::parts;
use crate::held_keys::{Closed, HeldFirst, HeldKey};
use crate::store_dead_letter::Cause;

impl parts::HeldKeys for Postgres {
    async fn holders(
        connection: &mut PgConnection,
        statements: &Statements,
        consumer: &str,
        keys: &[HeldKey],
    ) -> Result<Vec<Option<DeadLetterId>>, sqlx::Error> {
        let texts = |text: fn(&HeldKey) -> &str| keys.iter().map(text).collect::<Vec<_>>();
        let found: Vec<(i64, Uuid)> = sqlx::query_as(&statements.holders)
            .bind(consumer)
            .bind(texts(|key| &key.tenant))
            .bind(texts(|key| &key.topic))
            .bind(texts(|key| &key.key))
            .fetch_all(connection)
            .await?;
        let mut holders = vec![None; keys.len()];
        for (place, id) in found {
            let holder = usize::try_from(place - 1).ok().and_then(|at| holders.get_mut(at));
            let unasked = || {
                sqlx::Error::Decode("the database returned a holder for a key that was not requested".into())
            };
            *holder.ok_or_else(unasked)? = Some(DeadLetterId(id));
        }
        Ok(holders)
    }

    async fn holder_before(
        connection: &mut PgConnection,
        statements: &Statements,
        id: DeadLetterId,
    ) -> Result<Option<DeadLetterId>, sqlx::Error> {
        let holder =
            sqlx::query_scalar(&statements.holder_before).bind(id.0).fetch_optional(connection).await?;
        Ok(holder.map(DeadLetterId))
    }

    async fn held_firsts(
        connection: &mut PgConnection,
        statements: &Statements,
        consumer: &str,
        after: Option<&HeldKey>,
        limit: u32,
    ) -> Result<Vec<HeldFirst>, sqlx::Error> {
        // No topic is empty, so every key comes after three empty texts.
        let text = |text: fn(&HeldKey) -> &str| after.map_or("", text);
        let rows = sqlx::query(&statements.held_firsts)
            .bind(consumer)
            .bind(text(|key| &key.tenant))
            .bind(text(|key| &key.topic))
            .bind(text(|key| &key.key))
            .bind(i32::try_from(limit).unwrap_or(i32::MAX))
            .fetch_all(connection)
            .await?;
        let first = |row: &PgRow| HeldFirst::of_row(row, DeadLetterId(row.try_get("id")?));
        rows.iter().map(first).collect()
    }

    async fn closed_since(
        connection: &mut PgConnection,
        statements: &Statements,
        since: OffsetDateTime,
        limit: u32,
    ) -> Result<Vec<Closed>, sqlx::Error> {
        let closed = sqlx::query(&statements.closed_since).bind(since).bind(i64::from(limit));
        let closed = closed.fetch_all(connection).await?;
        closed.iter().map(Closed::of_row).collect()
    }

    async fn lock_held(
        connection: &mut PgConnection,
        statements: &Statements,
        id: DeadLetterId,
    ) -> Result<Option<DeadLetter>, sqlx::Error> {
        let row = sqlx::query(&statements.lock_held).bind(id.0).fetch_optional(connection).await?;
        row.as_ref().map(decode).transpose()
    }

    async fn fail_held(
        connection: &mut PgConnection,
        statements: &Statements,
        id: DeadLetterId,
        Cause { reason, error, attempts }: &Cause,
    ) -> Result<u64, sqlx::Error> {
        let failed = sqlx::query(&statements.fail_held)
            .bind(id.0)
            .bind(reason.as_str())
            .bind(error)
            .bind(i32::try_from(*attempts).unwrap_or(i32::MAX))
            .execute(connection)
            .await?;
        Ok(failed.rows_affected())
    }
}
