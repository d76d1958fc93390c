//! Admitting messages on PostgreSQL.

use std::collections::HashMap;

use message::Fingerprint;
use migrations::Identifier;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, Row, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;

use super::statements::Statements;
use crate::dead_letter::DeadLetterId;
use crate::dialect::{Content, Inserted, Key, Mark, Outcome, Session, Stored, parts};

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
        key: Key<'_>,
        content: Content<'_>,
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
        rows: &[(Key<'_>, Content<'_>)],
        mark: Mark,
    ) -> Result<Vec<Inserted>, sqlx::Error> {
        let keys: Vec<_> = rows.iter().map(|(key, _)| *key).collect();
        // In one order over all statements, so that two racing batches wait for each other and do
        // not deadlock.
        let mut ordered: Vec<_> = rows.iter().collect();
        ordered.sort_unstable_by_key(|(key, _)| (key.id, key.scope));
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

    /// The look at the marks and COMMIT are one message, since whoever commits one message at a
    /// time waits for each. A mark that is missing is a text of ours that is no number, and a
    /// statement that failed before fails the look (25P02); either way COMMIT is not reached.
    /// sqlx's own `commit()` returns `Ok` for a transaction that PostgreSQL rolls back. A deferred
    /// trigger may fail the commit with any code: the text tells its errors from the look's.
    ///
    /// AND CHAIN, because sqlx believes the transaction to be open until it is dropped, and sends a
    /// ROLLBACK with the next message then: one outside a transaction would be a warning in the
    /// server's log each time.
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

    /// Only while the session is in that very transaction: it may serve another one by now. The
    /// server shows the low 32 bits of the transaction's number there.
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

/// Whether PostgreSQL keeps the plan of a statement that reads or changes rows which are there. A
/// plan for all calls cannot leave a day out: it locks every one until the transaction ends, which
/// keeps the sweep from days that are over and fills the server's lock table. The sixth call of a
/// prepared statement makes such a plan, if only to compare it. So these statements cost a round
/// trip more; inserts, which lock the day of their row alone, do not.
pub(super) const KEEPS_PLANS: bool = false;

/// Rows per statement, some 12 kB. One of 500 rows waits 40 ms longer than it works: sqlx 0.9.0
/// leaves Nagle's algorithm on, so what does not fit into the first packets waits for an
/// acknowledgement, which the server delays. Batches of 500 made 0.37 of the bare handler's
/// messages a second in one statement, and 0.80 in three.
const INSERTED_MAX: usize = 200;

async fn insert_some(
    connection: &mut PgConnection,
    statements: &Statements,
    rows: &[&(Key<'_>, Content<'_>)],
    mark: Mark,
) -> Result<Vec<(Uuid, String, OffsetDateTime, i32, i64)>, sqlx::Error> {
    let Some((Key { consumer, .. }, _)) = rows.first() else { return Ok(Vec::new()) };
    let keys: Vec<_> = rows.iter().map(|(key, _)| *key).collect();
    let Columns { ids, scopes } = Columns::of(&keys);
    let fingerprints: Vec<_> = rows.iter().map(|(_, content)| &content.fingerprint.as_bytes()[..]).collect();
    let sources: Vec<_> = rows.iter().map(|(_, content)| content.source).collect();
    let mut canonicals: Vec<_> = rows.iter().map(|(_, content)| content.canonical_bytes()).collect();
    // Where bytes are compared, nothing is sent.
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

/// Reports the outcome of an insert that returned its time and its session, or nothing because of a
/// conflict.
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
            // Only a row that was removed by hand between the two statements.
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

/// The server repeats it in the error of the cast that it fails, in any language.
const MARKS_ARE_GONE: &str = " inbox marks: the transaction that admitted the messages has ended";

fn says_that_marks_are_gone(error: &sqlx::Error) -> bool {
    has_code(error, "22P02")
        && error.as_database_error().is_some_and(|answer| answer.message().contains(MARKS_ARE_GONE))
}

/// A row for which there is no partition is a check violation that names no constraint; one whose
/// day is forgotten and not dropped yet names the check of such days.
fn has_no_partition(error: &sqlx::Error) -> bool {
    let is_of_day = |constraint: Option<&str>| constraint.is_none_or(|name| name == FORGOTTEN);
    has_code(error, "23514") && error.as_database_error().is_some_and(|answer| is_of_day(answer.constraint()))
}

/// The check that refuses every row of a forgotten day.
const FORGOTTEN: &str = "inbox_message_day_is_forgotten";

pub(super) fn has_code(error: &sqlx::Error, sqlstate: &str) -> bool {
    error.as_database_error().is_some_and(|answer| answer.code().as_deref() == Some(sqlstate))
}
