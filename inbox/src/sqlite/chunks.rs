//! Chunks on SQLite.

use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt as _;
use message::{Chunk, Message, MessageId};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, Sqlite, SqliteConnection};
use time::OffsetDateTime;
use uuid::fmt::Hyphenated;

use super::statements::{
    CHUNK_NUMBERS, COUNT_CHUNKS, HAS_CHUNK, HOLD_SET, INCOMPLETE, KEEP_CHUNK, LOCK_SET, READ_CHUNKS,
    REMOVE_CHUNKS, REMOVE_SET, Statements,
};
use super::values;
use crate::chunks::{Incomplete, Split};
use crate::dialect::{ChunkSet, Key, Overdue, group_splits, parts};

/// Binds the key of a set as the first four parameters of a statement.
macro_rules! of_set {
    ($query:expr, $set:expr) => {
        $query
            .bind(values::text($set.key.id))
            .bind($set.key.consumer)
            .bind($set.key.scope)
            .bind(&$set.fingerprint.as_bytes()[..])
    };
}

impl parts::Chunks for Sqlite {
    async fn hold_set(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        set: ChunkSet<'_>,
        envelope: &Message,
        bytes: u64,
    ) -> Result<u64, sqlx::Error> {
        let held: i64 = of_set!(sqlx::query_scalar(HOLD_SET), set)
            .bind(i64::try_from(bytes).unwrap_or(i64::MAX))
            .bind(envelope.topic.as_str())
            .bind(envelope.key.as_ref().map(message::OrderingKey::as_str))
            .bind(envelope.kind.as_str())
            .bind(envelope.source.as_str())
            .bind(values::micros(envelope.time))
            .bind(envelope.content_type.as_str())
            .fetch_one(connection)
            .await?;
        Ok(held.unsigned_abs())
    }

    async fn keep_chunk(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        set: ChunkSet<'_>,
        chunk: &Chunk,
        payload: &[u8],
    ) -> Result<(), sqlx::Error> {
        of_set!(sqlx::query(KEEP_CHUNK), set)
            .bind(chunk.count())
            .bind(chunk.index())
            .bind(payload)
            .execute(connection)
            .await?;
        Ok(())
    }

    async fn count_chunks(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        set: ChunkSet<'_>,
        count: u32,
    ) -> Result<u32, sqlx::Error> {
        let held: i64 =
            of_set!(sqlx::query_scalar(COUNT_CHUNKS), set).bind(count).fetch_one(connection).await?;
        Ok(u32::try_from(held).unwrap_or(u32::MAX))
    }

    async fn has_chunk(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        set: ChunkSet<'_>,
        chunk: &Chunk,
    ) -> Result<bool, sqlx::Error> {
        of_set!(sqlx::query_scalar(HAS_CHUNK), set)
            .bind(chunk.count())
            .bind(chunk.index())
            .fetch_one(connection)
            .await
    }

    async fn read_chunks(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        set: ChunkSet<'_>,
        count: u32,
    ) -> Result<Bytes, sqlx::Error> {
        let mut chunks = of_set!(sqlx::query(READ_CHUNKS), set).bind(count).fetch(connection);
        let mut payload = BytesMut::new();
        while let Some(row) = chunks.try_next().await? {
            payload.extend_from_slice(row.try_get(0)?);
        }
        Ok(payload.freeze())
    }

    async fn remove_set(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        set: ChunkSet<'_>,
    ) -> Result<(), sqlx::Error> {
        of_set!(sqlx::query(REMOVE_CHUNKS), set).execute(&mut *connection).await?;
        of_set!(sqlx::query(REMOVE_SET), set).execute(connection).await?;
        Ok(())
    }

    async fn incomplete(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        overdue: Option<Overdue<'_>>,
        limit: u32,
    ) -> Result<Vec<Incomplete>, sqlx::Error> {
        let rows = sqlx::query(INCOMPLETE)
            .bind(overdue.map(|overdue| values::micros(overdue.before)))
            .bind(i64::from(limit))
            .bind(overdue.and_then(|overdue| overdue.consumer))
            .bind(overdue.map(|overdue| values::micros(overdue.others_before)))
            .fetch_all(&mut *connection)
            .await?;
        let mut incomplete = Vec::with_capacity(rows.len());
        for row in rows {
            incomplete.push(with_splits(connection, &row).await?);
        }
        Ok(incomplete)
    }

    async fn lock_set(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        set: ChunkSet<'_>,
        tried_before: OffsetDateTime,
    ) -> Result<Option<Incomplete>, sqlx::Error> {
        let lock = of_set!(sqlx::query(LOCK_SET), set).bind(values::micros(tried_before));
        let row = lock.fetch_optional(&mut *connection).await?;
        match row {
            Some(row) => with_splits(connection, &row).await.map(Some),
            None => Ok(None),
        }
    }
}

/// Reads a set and the numbers of its chunks.
async fn with_splits(connection: &mut SqliteConnection, row: &SqliteRow) -> Result<Incomplete, sqlx::Error> {
    let mut incomplete = decode(row)?;
    let key = Key { consumer: &incomplete.consumer, scope: &incomplete.scope, id: incomplete.id.as_uuid() };
    let set = ChunkSet { key, fingerprint: incomplete.fingerprint };
    let numbers: Vec<(u32, u32)> = of_set!(sqlx::query_as(CHUNK_NUMBERS), set).fetch_all(connection).await?;
    incomplete.splits = group_splits(numbers);
    Ok(incomplete)
}

fn decode(row: &SqliteRow) -> Result<Incomplete, sqlx::Error> {
    let id: Hyphenated = row.try_get("message_id")?;
    let fingerprint: Vec<u8> = row.try_get("fingerprint")?;
    Ok(Incomplete {
        consumer: row.try_get("consumer")?,
        scope: row.try_get("scope")?,
        id: MessageId::try_from(id.into_uuid()).map_err(|error| sqlx::Error::Decode(error.into()))?,
        fingerprint: values::fingerprint(&fingerprint)?,
        topic: row.try_get("topic")?,
        key: row.try_get("key")?,
        kind: row.try_get("kind")?,
        source: row.try_get("source")?,
        time: values::time(row.try_get("time")?)?,
        content_type: row.try_get("content_type")?,
        bytes: row.try_get::<i64, _>("bytes")?.unsigned_abs(),
        begun_at: values::time(row.try_get("begun_at")?)?,
        splits: Vec::<Split>::new(),
    })
}
