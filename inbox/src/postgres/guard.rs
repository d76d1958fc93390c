//! Admits messages on PostgreSQL.

use std::collections::HashMap;

use message::Fingerprint;
use migrations::Identifier;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, Row, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;

use super::statements::Statements;
use crate::dead_letter::DeadLetterId;
use crate::dialect::{Inserted, Key, Mark, NewRow, Outcome, Session, Stored, parts};

impl parts::Guards for Postgres {
    type Statements = Statements;

    fn statements(schema: Option<&Identifier>) -> Statements {
        Statements::new(schema)
    }

    async fn begin_writing(pool: &PgPool) -> Result<Transaction<'static, Self>, sqlx::Error> {
        pool.begin().await
    }

    async fn insert(
        connection: &mut PgConnection,
        statements: &Statements,
        NewRow { key, content }: NewRow<'_>,
        mark: Mark,
    ) -> Result<Inserted, sqlx::Error> {
        let inserted = sqlx::query_as(&statements.insert)
            .bind(key.id)
            .bind(key.consumer)
            .bind(key.scope)
            .bind(&content.fingerprint.as_bytes()[..])
            .bind(mark == Mark::Yes)
            .bind(content.source)
            .bind(content.canonical_bytes())
            .fetch_optional(&mut *connection)
            .await;
        inserted_or_found(connection, statements, key, inserted).await
    }

    async fn insert_batch(
        connection: &mut PgConnection,
        statements: &Statements,
        rows: &[NewRow<'_>],
        mark: Mark,
    ) -> Result<Vec<Inserted>, sqlx::Error> {
        let keys: Vec<_> = rows.iter().map(|row| row.key).collect();
        // One order across all statements, so that two racing batches wait for each other instead
        // of deadlocking.
        let mut ordered: Vec<_> = rows.iter().collect();
        ordered.sort_unstable_by_key(|row| (row.key.id, row.key.scope));
        let mut inserted = Vec::with_capacity(rows.len());
        for rows in ordered.chunks(INSERTED_MAX) {
            match insert_some(connection, statements, rows, mark).await {
                Err(error) if has_no_partition(&error) => return Ok(vec![Inserted::Forgotten; keys.len()]),
                some => inserted.extend(some?),
            }
        }
        // RETURNING has no order of its own.
        let mut found: HashMap<_, _> = inserted
            .into_iter()
            .map(|(id, scope, processed_at, process, transaction)| {
                ((id, scope), Inserted::New { processed_at, session: Some(Session { process, transaction }) })
            })
            .collect();
        let rest: Vec<_> =
            keys.iter().filter(|key| !found.contains_key(&(key.id, key.scope.to_owned()))).copied().collect();
        found.extend(find_batch(connection, statements, &rest).await?);
        let place = |key: &Key<'_>| found.get(&(key.id, key.scope.to_owned())).cloned();
        keys.iter().map(|key| place(key).ok_or(sqlx::Error::RowNotFound)).collect()
    }

    async fn canonical(
        connection: &mut PgConnection,
        statements: &Statements,
        key: Key<'_>,
    ) -> Result<Option<Fingerprint>, sqlx::Error> {
        let stored: Option<Option<[u8; 32]>> = sqlx::query_scalar(&statements.canonical)
            .persistent(KEEPS_PLANS)
            .bind(key.id)
            .bind(key.consumer)
            .bind(key.scope)
            .fetch_optional(connection)
            .await?;
        Ok(stored.flatten().map(Fingerprint::from))
    }

    async fn find(
        connection: &mut PgConnection,
        statements: &Statements,
        key: Key<'_>,
    ) -> Result<Option<Stored>, sqlx::Error> {
        sqlx::query(&statements.find)
            .persistent(KEEPS_PLANS)
            .bind(key.id)
            .bind(key.consumer)
            .bind(key.scope)
            .fetch_optional(connection)
            .await?
            .as_ref()
            .map(stored)
            .transpose()
    }

    async fn has_marked(connection: &mut PgConnection, marked: &[Key<'_>]) -> Result<bool, sqlx::Error> {
        let marks: String =
            sqlx::query_scalar("SELECT coalesce(nullif(current_setting('inbox.marks', true), ''), '0')")
                .fetch_one(connection)
                .await?;
        Ok(marks == marked.len().to_string())
    }

    /// Sends the check of the marks and COMMIT as one message, because a loop that commits one
    /// message at a time waits for each round trip. If a mark is missing, the check casts a text
    /// that is not a number and fails. If an earlier statement failed, the check fails too (25P02).
    /// Either way COMMIT is not reached. sqlx's own `commit()` returns `Ok` for a transaction that
    /// PostgreSQL rolls back. A deferred trigger may fail the commit with any code, so the text
    /// distinguishes its errors from those of the check.
    ///
    /// AND CHAIN, because sqlx believes that the transaction is open until it is dropped, and then
    /// sends a ROLLBACK with the next message. Outside a transaction, each ROLLBACK would log a
    /// warning on the server.
    async fn commit(
        mut tx: Transaction<'static, Self>,
        marked: &[Key<'_>],
    ) -> Result<Outcome<Self>, sqlx::Error> {
        let look_and_commit = format!(
            "SELECT CASE WHEN marks = '{}' THEN 0 ELSE (marks || '{MARKS_ARE_GONE}')::int END \
             FROM (SELECT coalesce(nullif(current_setting('inbox.marks', true), ''), '0') OFFSET 0) AS m (marks); \
             COMMIT AND CHAIN",
            marked.len()
        );
        match sqlx::raw_sql(AssertSqlSafe(look_and_commit)).execute(&mut *tx).await {
            Ok(_) => Ok(Outcome::Done(Some(tx))),
            Err(error) if says_that_marks_are_gone(&error) => Ok(Outcome::Gone),
            Err(error) => Err(error),
        }
    }

    async fn session(connection: &mut PgConnection) -> Result<Option<Session>, sqlx::Error> {
        let (process, transaction) =
            sqlx::query_as("SELECT pg_backend_pid(), pg_current_xact_id()::text::bigint")
                .fetch_one(connection)
                .await?;
        Ok(Some(Session { process, transaction }))
    }

    /// Cancels only while the session is in that very transaction, because it may serve another one
    /// by now. `pg_stat_activity` shows the low 32 bits of the transaction's number.
    async fn interrupt(connection: &mut PgConnection, session: Session) -> Result<(), sqlx::Error> {
        sqlx::query(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity \
             WHERE pid = $1 AND backend_xid::text::bigint = ($2 & 4294967295)",
        )
        .bind(session.process)
        .bind(session.transaction)
        .execute(connection)
        .await?;
        Ok(())
    }

    async fn complete(
        connection: &mut PgConnection,
        statements: &Statements,
        key: Key<'_>,
        result: &[u8],
    ) -> Result<u64, sqlx::Error> {
        let done = sqlx::query(&statements.complete)
            .persistent(KEEPS_PLANS)
            .bind(key.id)
            .bind(key.consumer)
            .bind(key.scope)
            .bind(result)
            .execute(connection)
            .await?;
        Ok(done.rows_affected())
    }
}

/// Whether PostgreSQL keeps the plan of a statement that reads or changes existing rows. A plan for
/// all calls cannot skip a day: it locks every day until the transaction ends. That blocks the
/// sweep of expired days and fills the server's lock table. PostgreSQL makes such a plan at the
/// sixth call of a prepared statement, if only to compare costs. So these plans are not kept, which
/// costs one more round trip. Inserts lock only the day of their row, so their plans are kept.
pub(super) const KEEPS_PLANS: bool = false;

/// Rows per statement, about 12 kB. A statement of 500 rows waits 40 ms longer than it works: sqlx
/// 0.9.0 leaves Nagle's algorithm on, so data beyond the first packets waits for an
/// acknowledgement, which the server delays. Batches of 500 reached 0.37 of the bare handler's
/// messages per second in one statement, and 0.80 in three.
const INSERTED_MAX: usize = 200;

async fn insert_some(
    connection: &mut PgConnection,
    statements: &Statements,
    rows: &[&NewRow<'_>],
    mark: Mark,
) -> Result<Vec<(Uuid, String, OffsetDateTime, i32, i64)>, sqlx::Error> {
    let Some(NewRow { key: Key { consumer, .. }, .. }) = rows.first() else { return Ok(Vec::new()) };
    let keys: Vec<_> = rows.iter().map(|row| row.key).collect();
    let Columns { ids, scopes } = Columns::of(&keys);
    let fingerprints: Vec<_> = rows.iter().map(|row| &row.content.fingerprint.as_bytes()[..]).collect();
    let sources: Vec<_> = rows.iter().map(|row| row.content.source).collect();
    let mut canonicals: Vec<_> = rows.iter().map(|row| row.content.canonical_bytes()).collect();
    // When bytes are compared, there are no canonical fingerprints to send.
    if canonicals.iter().all(Option::is_none) {
        canonicals.clear();
    }
    sqlx::query_as(&statements.insert_batch)
        .bind(consumer)
        .bind(&ids)
        .bind(&scopes)
        .bind(&fingerprints)
        .bind(mark == Mark::Yes)
        .bind(&sources)
        .bind(&canonicals)
        .fetch_all(connection)
        .await
}

/// Converts the result of an insert. Looks up the existing row when the insert returned no row
/// because of a conflict.
pub(super) async fn inserted_or_found(
    connection: &mut PgConnection,
    statements: &Statements,
    key: Key<'_>,
    inserted: Result<Option<(OffsetDateTime, i32, i64)>, sqlx::Error>,
) -> Result<Inserted, sqlx::Error> {
    match inserted {
        Ok(Some((processed_at, process, transaction))) => {
            Ok(Inserted::New { processed_at, session: Some(Session { process, transaction }) })
        }
        Ok(None) => match <Postgres as parts::Guards>::find(connection, statements, key).await? {
            Some(stored) => Ok(Inserted::Exists(stored)),
            // Only when the row was removed by hand between the two statements.
            None => Err(sqlx::Error::RowNotFound),
        },
        Err(error) if has_no_partition(&error) => Ok(Inserted::Forgotten),
        Err(error) => Err(error),
    }
}

pub(super) struct Columns<'a> {
    pub(super) ids: Vec<Uuid>,
    pub(super) scopes: Vec<&'a str>,
}

impl<'a> Columns<'a> {
    pub(super) fn of(keys: &[Key<'a>]) -> Self {
        Self {
            ids: keys.iter().map(|key| key.id).collect(),
            scopes: keys.iter().map(|key| key.scope).collect(),
        }
    }
}

async fn find_batch(
    connection: &mut PgConnection,
    statements: &Statements,
    keys: &[Key<'_>],
) -> Result<Vec<((Uuid, String), Inserted)>, sqlx::Error> {
    let Some(Key { consumer, .. }) = keys.first() else { return Ok(Vec::new()) };
    let Columns { ids, scopes } = Columns::of(keys);
    let rows = sqlx::query(&statements.find_batch)
        .persistent(KEEPS_PLANS)
        .bind(consumer)
        .bind(&ids)
        .bind(&scopes)
        .bind(ids.iter().min())
        .bind(ids.iter().max())
        .fetch_all(connection)
        .await?;
    rows.iter()
        .map(|row| {
            let key = (row.try_get("message_id")?, row.try_get("scope")?);
            Ok((key, Inserted::Exists(stored(row)?)))
        })
        .collect()
}

fn stored(row: &PgRow) -> Result<Stored, sqlx::Error> {
    let bytes: [u8; 32] = row.try_get("fingerprint")?;
    Ok(Stored {
        fingerprint: Fingerprint::from(bytes),
        source: row.try_get("source")?,
        result: row.try_get("result")?,
        processed_at: row.try_get("processed_at")?,
        dead_letter: row.try_get::<Option<Uuid>, _>("dead_letter")?.map(DeadLetterId),
    })
}

/// Text that a missing mark appends before the cast. The server repeats it in the cast's error, in
/// any language.
const MARKS_ARE_GONE: &str = " inbox marks: the transaction that admitted the messages has ended";

fn says_that_marks_are_gone(error: &sqlx::Error) -> bool {
    has_code(error, "22P02")
        && error.as_database_error().is_some_and(|answer| answer.message().contains(MARKS_ARE_GONE))
}

/// Returns whether an insert failed because its day is gone. A missing partition is a check
/// violation without a constraint name. A day that is forgotten but not dropped yet has a named
/// check.
fn has_no_partition(error: &sqlx::Error) -> bool {
    let is_of_day = |constraint: Option<&str>| constraint.is_none_or(|name| name == FORGOTTEN);
    has_code(error, "23514") && error.as_database_error().is_some_and(|answer| is_of_day(answer.constraint()))
}

/// The check that refuses every row of a forgotten day.
const FORGOTTEN: &str = "inbox_message_day_is_forgotten";

pub(super) fn has_code(error: &sqlx::Error, sqlstate: &str) -> bool {
    error.as_database_error().is_some_and(|answer| answer.code().as_deref() == Some(sqlstate))
}
