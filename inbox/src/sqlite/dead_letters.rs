//! Dead letters on SQLite.

use bytes::Bytes;
use message::{Fingerprint, MessageId};
use sqlx::sqlite::SqliteRow;
use sqlx::types::Json;
use sqlx::{Row, Sqlite, SqliteConnection};
use time::OffsetDateTime;
use uuid::fmt::Hyphenated;

use super::guard::inserted_or_found;
use super::statements::{
    CLEAR_DEAD, DEAD_LETTER, DEAD_LETTERS, FINGERPRINT_OF_DEAD_LETTER, INSERT_DEAD, OTHERS,
    PURGE_DEAD_LETTERS, RESOLVE, STORE_DEAD_LETTER, Statements,
};
use super::values;
use crate::dead_letter::{DeadLetter, DeadLetterId, DeadLetterQuery, Reason, Resolution};
use crate::dialect::{Content, Inserted, Key, NewRow, parts};

impl parts::DeadLetters for Sqlite {
    async fn store_dead_letter(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        letter: &DeadLetter,
    ) -> Result<DeadLetterId, sqlx::Error> {
        let (traceparent, tracestate) = letter.trace.clone().unzip();
        sqlx::query_scalar(STORE_DEAD_LETTER)
            .bind(values::text(letter.id.0))
            .bind(&letter.consumer)
            .bind(&letter.scope)
            .bind(values::text(letter.subject))
            .bind(&letter.fingerprint.as_bytes()[..])
            .bind(letter.message_id.map(|id| values::text(id.as_uuid())))
            .bind(&letter.topic)
            .bind(&letter.key)
            .bind(&letter.kind)
            .bind(&letter.source)
            .bind(letter.time.map(values::micros))
            .bind(&letter.content_type)
            .bind(Json(&letter.headers))
            .bind(traceparent)
            .bind(tracestate.flatten())
            .bind(&letter.payload[..])
            .bind(letter.reason.as_str())
            .bind(&letter.error)
            .bind(letter.attempts)
            .bind(&letter.origin)
            .fetch_one(connection)
            .await
            .map(|id: Hyphenated| DeadLetterId(id.into_uuid()))
    }

    async fn fingerprint_of_dead_letter(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        key: Key<'_>,
    ) -> Result<Option<Fingerprint>, sqlx::Error> {
        let found: Option<Vec<u8>> = sqlx::query_scalar(FINGERPRINT_OF_DEAD_LETTER)
            .bind(key.consumer)
            .bind(key.scope)
            .bind(values::text(key.id))
            .fetch_optional(connection)
            .await?;
        found.as_deref().map(values::fingerprint).transpose()
    }

    async fn dead_letter(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        id: DeadLetterId,
        // A writing transaction excludes all others.
        _lock: bool,
    ) -> Result<Option<DeadLetter>, sqlx::Error> {
        let row = sqlx::query(DEAD_LETTER).bind(values::text(id.0)).fetch_optional(connection).await?;
        row.as_ref().map(decode).transpose()
    }

    async fn lock_others(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        key: Key<'_>,
        id: DeadLetterId,
    ) -> Result<Vec<DeadLetter>, sqlx::Error> {
        let rows = sqlx::query(OTHERS)
            .bind(key.consumer)
            .bind(key.scope)
            .bind(values::text(key.id))
            .bind(values::text(id.0))
            .fetch_all(connection)
            .await?;
        rows.iter().map(decode).collect()
    }

    async fn dead_letters(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        query: &DeadLetterQuery,
    ) -> Result<Vec<DeadLetter>, sqlx::Error> {
        let rows = sqlx::query(DEAD_LETTERS)
            .bind(query.consumer.as_ref().map(|consumer| consumer.as_str()))
            .bind(query.resolved_too)
            .bind(query.after.map(|id| values::text(id.0)))
            .bind(i64::from(query.limit.get()))
            .bind(query.with_payloads)
            .fetch_all(connection)
            .await?;
        rows.iter().map(decode).collect()
    }

    async fn insert_dead(
        connection: &mut SqliteConnection,
        statements: &Statements,
        NewRow { key, content }: NewRow<'_>,
        id: DeadLetterId,
    ) -> Result<Inserted, sqlx::Error> {
        let inserted = sqlx::query_scalar(INSERT_DEAD)
            .bind(values::text(key.id))
            .bind(key.consumer)
            .bind(key.scope)
            .bind(&content.fingerprint.as_bytes()[..])
            .bind(values::text(id.0))
            .bind(content.source)
            .bind(content.canonical_bytes())
            .fetch_optional(&mut *connection)
            .await?;
        inserted_or_found(connection, statements, key, inserted).await
    }

    async fn clear_dead(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        key: Key<'_>,
        id: DeadLetterId,
        content: Content<'_>,
    ) -> Result<u64, sqlx::Error> {
        let cleared = sqlx::query(CLEAR_DEAD)
            .bind(values::text(key.id))
            .bind(key.consumer)
            .bind(key.scope)
            .bind(values::text(id.0))
            .bind(content.canonical_bytes())
            .execute(connection)
            .await?;
        Ok(cleared.rows_affected())
    }

    async fn resolve(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        id: DeadLetterId,
        resolution: Resolution,
    ) -> Result<u64, sqlx::Error> {
        let resolved = sqlx::query(RESOLVE)
            .bind(values::text(id.0))
            .bind(resolution.as_str())
            .execute(connection)
            .await?;
        Ok(resolved.rows_affected())
    }

    async fn purge_dead_letters(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        before: OffsetDateTime,
        limit: u32,
    ) -> Result<u64, sqlx::Error> {
        let purge = sqlx::query(PURGE_DEAD_LETTERS).bind(values::micros(before)).bind(limit);
        let purged = purge.execute(connection).await?;
        Ok(purged.rows_affected())
    }
}

pub(super) fn decode(row: &SqliteRow) -> Result<DeadLetter, sqlx::Error> {
    let fingerprint: Vec<u8> = row.try_get("fingerprint")?;
    let message_id: Option<Hyphenated> = row.try_get("message_id")?;
    let Json(headers) = row.try_get("headers")?;
    let traceparent: Option<String> = row.try_get("traceparent")?;
    let tracestate: Option<String> = row.try_get("tracestate")?;
    let payload: Vec<u8> = row.try_get("payload")?;
    let count = |column| row.try_get::<u32, _>(column);
    let word = |column: &'static str| row.try_get::<Option<String>, _>(column);
    let resolution = word("resolution")?.as_deref().and_then(Resolution::from_word);
    let time = |column: &'static str| row.try_get::<Option<i64>, _>(column)?.map(values::time).transpose();
    let uuid = |column| row.try_get::<Hyphenated, _>(column).map(Hyphenated::into_uuid);
    Ok(DeadLetter {
        id: DeadLetterId(uuid("id")?),
        consumer: row.try_get("consumer")?,
        scope: row.try_get("scope")?,
        subject: uuid("subject")?,
        fingerprint: values::fingerprint(&fingerprint)?,
        message_id: message_id
            .map(|id| MessageId::try_from(id.into_uuid()))
            .transpose()
            .map_err(|e| sqlx::Error::Decode(e.into()))?,
        topic: row.try_get("topic")?,
        key: row.try_get("key")?,
        kind: row.try_get("kind")?,
        source: row.try_get("source")?,
        time: time("time")?,
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
        dead_at: values::time(row.try_get("dead_at")?)?,
        resolved: resolution.zip(time("resolved_at")?),
        seq: row.try_get("seq")?,
    })
}
