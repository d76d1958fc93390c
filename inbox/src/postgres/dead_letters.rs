//! Dead letters on PostgreSQL.

use bytes::Bytes;
use message::{Fingerprint, MessageId};
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use sqlx::{PgConnection, Postgres, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use super::guard::{KEEPS_PLANS, inserted_or_found};
use super::statements::Statements;
use crate::dead_letter::{DeadLetter, DeadLetterId, DeadLetterQuery, Reason, Resolution};
use crate::dialect::{Content, Inserted, Key, NewRow, parts};

impl parts::DeadLetters for Postgres {
    async fn store_dead_letter(
        connection: &mut PgConnection,
        statements: &Statements,
        letter: &DeadLetter,
    ) -> Result<DeadLetterId, sqlx::Error> {
        let (traceparent, tracestate) = letter.trace.clone().unzip();
        sqlx::query_scalar(&statements.store_dead_letter)
            .bind(letter.id.0)
            .bind(&letter.consumer)
            .bind(&letter.scope)
            .bind(letter.subject)
            .bind(&letter.fingerprint.as_bytes()[..])
            .bind(letter.message_id.map(MessageId::as_uuid))
            .bind(&letter.topic)
            .bind(&letter.key)
            .bind(&letter.kind)
            .bind(&letter.source)
            .bind(letter.time)
            .bind(&letter.content_type)
            .bind(Json(&letter.headers))
            .bind(traceparent)
            .bind(tracestate.flatten())
            .bind(&letter.payload[..])
            .bind(letter.reason.as_str())
            .bind(&letter.error)
            .bind(i32::try_from(letter.attempts).unwrap_or(i32::MAX))
            .bind(&letter.origin)
            .fetch_one(connection)
            .await
            .map(DeadLetterId)
    }

    async fn fingerprint_of_dead_letter(
        connection: &mut PgConnection,
        statements: &Statements,
        key: Key<'_>,
    ) -> Result<Option<Fingerprint>, sqlx::Error> {
        let found: Option<[u8; 32]> = sqlx::query_scalar(&statements.fingerprint_of_dead_letter)
            .bind(key.consumer)
            .bind(key.scope)
            .bind(key.id)
            .fetch_optional(connection)
            .await?;
        Ok(found.map(Fingerprint::from))
    }

    async fn dead_letter(
        connection: &mut PgConnection,
        statements: &Statements,
        id: DeadLetterId,
        lock: bool,
    ) -> Result<Option<DeadLetter>, sqlx::Error> {
        let statement = if lock { &statements.lock_dead_letter } else { &statements.dead_letter };
        let row = sqlx::query(statement).bind(id.0).fetch_optional(connection).await?;
        row.as_ref().map(decode).transpose()
    }

    async fn lock_others(
        connection: &mut PgConnection,
        statements: &Statements,
        key: Key<'_>,
        id: DeadLetterId,
    ) -> Result<Vec<DeadLetter>, sqlx::Error> {
        let rows = sqlx::query(&statements.lock_others)
            .bind(key.consumer)
            .bind(key.scope)
            .bind(key.id)
            .bind(id.0)
            .fetch_all(connection)
            .await?;
        rows.iter().map(decode).collect()
    }

    async fn dead_letters(
        connection: &mut PgConnection,
        statements: &Statements,
        query: &DeadLetterQuery,
    ) -> Result<Vec<DeadLetter>, sqlx::Error> {
        let statement =
            if query.resolved_too { &statements.dead_letters } else { &statements.open_dead_letters };
        let rows = sqlx::query(statement)
            .bind(query.consumer.as_ref().map(|consumer| consumer.as_str()))
            .bind(query.after.map(|id| id.0))
            .bind(i64::from(query.limit.get()))
            .bind(query.with_payloads)
            .fetch_all(connection)
            .await?;
        rows.iter().map(decode).collect()
    }

    async fn insert_dead(
        connection: &mut PgConnection,
        statements: &Statements,
        NewRow { key, content }: NewRow<'_>,
        id: DeadLetterId,
    ) -> Result<Inserted, sqlx::Error> {
        let inserted = sqlx::query_as(&statements.insert_dead)
            .bind(key.id)
            .bind(key.consumer)
            .bind(key.scope)
            .bind(&content.fingerprint.as_bytes()[..])
            .bind(id.0)
            .bind(content.source)
            .bind(content.canonical_bytes())
            .fetch_optional(&mut *connection)
            .await;
        inserted_or_found(connection, statements, key, inserted).await
    }

    async fn clear_dead(
        connection: &mut PgConnection,
        statements: &Statements,
        key: Key<'_>,
        id: DeadLetterId,
        content: Content<'_>,
    ) -> Result<u64, sqlx::Error> {
        let cleared = sqlx::query(&statements.clear_dead)
            .persistent(KEEPS_PLANS)
            .bind(key.id)
            .bind(key.consumer)
            .bind(key.scope)
            .bind(id.0)
            .bind(content.canonical_bytes())
            .execute(connection)
            .await?;
        Ok(cleared.rows_affected())
    }

    async fn resolve(
        connection: &mut PgConnection,
        statements: &Statements,
        id: DeadLetterId,
        resolution: Resolution,
    ) -> Result<u64, sqlx::Error> {
        let resolved =
            sqlx::query(&statements.resolve).bind(id.0).bind(resolution.as_str()).execute(connection).await?;
        Ok(resolved.rows_affected())
    }

    async fn purge_dead_letters(
        connection: &mut PgConnection,
        statements: &Statements,
        before: OffsetDateTime,
        limit: u32,
    ) -> Result<u64, sqlx::Error> {
        let purge = sqlx::query(&statements.purge_dead_letters).bind(before).bind(i64::from(limit));
        let purged = purge.execute(connection).await?;
        Ok(purged.rows_affected())
    }
}

pub(super) fn decode(row: &PgRow) -> Result<DeadLetter, sqlx::Error> {
    let fingerprint: [u8; 32] = row.try_get("fingerprint")?;
    let message_id: Option<Uuid> = row.try_get("message_id")?;
    let Json(headers) = row.try_get("headers")?;
    let traceparent: Option<String> = row.try_get("traceparent")?;
    let tracestate: Option<String> = row.try_get("tracestate")?;
    let payload: Vec<u8> = row.try_get("payload")?;
    let count = |column| row.try_get::<i32, _>(column).map(i32::unsigned_abs);
    let word = |column: &'static str| row.try_get::<Option<String>, _>(column);
    let resolution = word("resolution")?.as_deref().and_then(Resolution::from_word);
    let resolved_at: Option<OffsetDateTime> = row.try_get("resolved_at")?;
    Ok(DeadLetter {
        id: DeadLetterId(row.try_get("id")?),
        consumer: row.try_get("consumer")?,
        scope: row.try_get("scope")?,
        subject: row.try_get("subject")?,
        fingerprint: Fingerprint::from(fingerprint),
        message_id: message_id
            .map(MessageId::try_from)
            .transpose()
            .map_err(|e| sqlx::Error::Decode(e.into()))?,
        topic: row.try_get("topic")?,
        key: row.try_get("key")?,
        kind: row.try_get("kind")?,
        source: row.try_get("source")?,
        time: row.try_get("time")?,
        content_type: row.try_get("content_type")?,
        headers,
        trace: traceparent.map(|parent| (parent, tracestate)),
        payload: Bytes::from(payload),
        payload_bytes: row.try_get::<i64, _>("payload_bytes")?.unsigned_abs(),
        reason: word("reason")?.as_deref().and_then(Reason::from_word).ok_or_else(|| {
            sqlx::Error::Decode("a dead letter has a reason that this build does not know".into())
        })?,
        error: row.try_get("error")?,
        attempts: count("attempts")?,
        deliveries: count("deliveries")?,
        origin: row.try_get("origin")?,
        dead_at: row.try_get("dead_at")?,
        resolved: resolution.zip(resolved_at),
        seq: row.try_get("seq")?,
    })
}
