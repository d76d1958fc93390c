//! Admits messages on SQLite.

use message::Fingerprint;
use migrations::{Identifier, begin_outside};
use sqlx::{Sqlite, SqliteConnection, SqlitePool, Transaction};
use uuid::fmt::Hyphenated;

use super::statements::{CANONICAL, COMPLETE, COUNT, FIND, INSERT, Statements};
use super::values;
use crate::dead_letter::DeadLetterId;
use crate::dialect::{Inserted, Key, Mark, NewRow, Outcome, Session, Stored, parts};

/// Fingerprint, source, result, time, and the dead letter that the message became.
type StoredTuple = (Vec<u8>, Option<String>, Option<Vec<u8>>, i64, Option<Hyphenated>);

impl parts::Guards for Sqlite {
    type Statements = Statements;

    fn statements(_schema: Option<&Identifier>) -> Statements {
        Statements
    }

    /// Uses IMMEDIATE, which waits for the write lock within the busy timeout; a later upgrade
    /// fails at once with BUSY.
    async fn begin_writing(pool: &SqlitePool) -> Result<Transaction<'static, Self>, sqlx::Error> {
        begin_outside(pool, "BEGIN IMMEDIATE").await
    }

    async fn insert(
        connection: &mut SqliteConnection,
        statements: &Statements,
        NewRow { key, content }: NewRow<'_>,
        _mark: Mark,
    ) -> Result<Inserted, sqlx::Error> {
        let inserted = sqlx::query_scalar(INSERT)
            .bind(values::text(key.id))
            .bind(key.consumer)
            .bind(key.scope)
            .bind(&content.fingerprint.as_bytes()[..])
            .bind(content.source)
            .bind(content.canonical_bytes())
            .fetch_optional(&mut *connection)
            .await?;
        inserted_or_found(connection, statements, key, inserted).await
    }

    /// Inserts one by one: SQLite runs in this process, so there are no round trips to save.
    async fn insert_batch(
        connection: &mut SqliteConnection,
        statements: &Statements,
        rows: &[NewRow<'_>],
        mark: Mark,
    ) -> Result<Vec<Inserted>, sqlx::Error> {
        let mut inserted = Vec::with_capacity(rows.len());
        for row in rows {
            inserted.push(Self::insert(connection, statements, *row, mark).await?);
        }
        Ok(inserted)
    }

    async fn canonical(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        key: Key<'_>,
    ) -> Result<Option<Fingerprint>, sqlx::Error> {
        let stored: Option<Option<Vec<u8>>> = sqlx::query_scalar(CANONICAL)
            .bind(values::text(key.id))
            .bind(key.consumer)
            .bind(key.scope)
            .fetch_optional(connection)
            .await?;
        stored.flatten().map(|stored| values::fingerprint(&stored)).transpose()
    }

    async fn find(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        key: Key<'_>,
    ) -> Result<Option<Stored>, sqlx::Error> {
        let row: Option<StoredTuple> = sqlx::query_as(FIND)
            .bind(values::text(key.id))
            .bind(key.consumer)
            .bind(key.scope)
            .fetch_optional(connection)
            .await?;
        row.map(|(fingerprint, source, result, processed_at, dead_letter)| {
            let fingerprint = values::fingerprint(&fingerprint)?;
            let dead_letter = dead_letter.map(|id| DeadLetterId(id.into_uuid()));
            Ok(Stored { fingerprint, source, result, processed_at: values::time(processed_at)?, dead_letter })
        })
        .transpose()
    }

    /// Checks every row. A lookup in process is cheap, so there are no marks.
    async fn has_marked(connection: &mut SqliteConnection, marked: &[Key<'_>]) -> Result<bool, sqlx::Error> {
        for key in marked {
            let found: i64 = sqlx::query_scalar(COUNT)
                .bind(values::text(key.id))
                .bind(key.consumer)
                .bind(key.scope)
                .fetch_one(&mut *connection)
                .await?;
            if found == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn commit(
        mut tx: Transaction<'static, Self>,
        marked: &[Key<'_>],
    ) -> Result<Outcome<Self>, sqlx::Error> {
        if !Self::has_marked(&mut tx, marked).await? {
            return Ok(Outcome::Gone);
        }
        tx.commit().await?;
        Ok(Outcome::Done(None))
    }

    /// Returns `None`: a session is a thread of this process. A failed statement aborts no
    /// transaction.
    async fn session(_connection: &mut SqliteConnection) -> Result<Option<Session>, sqlx::Error> {
        Ok(None)
    }

    /// Does nothing: a session is a thread of this process, and its statements are short.
    async fn interrupt(_connection: &mut SqliteConnection, _session: Session) -> Result<(), sqlx::Error> {
        Ok(())
    }

    async fn complete(
        connection: &mut SqliteConnection,
        _statements: &Statements,
        key: Key<'_>,
        result: &[u8],
    ) -> Result<u64, sqlx::Error> {
        let done = sqlx::query(COMPLETE)
            .bind(values::text(key.id))
            .bind(key.consumer)
            .bind(key.scope)
            .bind(result)
            .execute(connection)
            .await?;
        Ok(done.rows_affected())
    }
}

/// Converts the result of an insert that returned its time, or nothing because of a conflict or of
/// the floor.
pub(super) async fn inserted_or_found(
    connection: &mut SqliteConnection,
    statements: &Statements,
    key: Key<'_>,
    inserted: Option<i64>,
) -> Result<Inserted, sqlx::Error> {
    if let Some(processed_at) = inserted {
        return Ok(Inserted::New { processed_at: values::time(processed_at)?, session: None });
    }
    let found = <Sqlite as parts::Guards>::find(connection, statements, key).await?;
    Ok(found.map_or(Inserted::Forgotten, Inserted::Exists))
}
