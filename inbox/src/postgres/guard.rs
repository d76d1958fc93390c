//! Admits messages on PostgreSQL.

use std::collections::HashMap;
use std::time::Duration;

use migrations::Identifier;
use migrations::query::Row;
use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, PgConnection, Postgres, SqlSafeStr as _, Transaction};
use uuid::Uuid;

use super::statements::Statements;
use crate::dialect::{Guards, Inserted, Mark, NewRow, Outcome, Session};
use crate::ids::Key;
use crate::rows;
use crate::statements::{Shared, Texts, shared_of};
use crate::tables::Tables;

/// One message. The setting ends with the transaction.
const BEGIN_DURABLE: &str = concat!("BEGIN; SELECT ", migrations::waits_for_the_disk!());

impl Texts for Postgres {
    type Statements = Statements;

    fn statements(schema: Option<&Identifier>) -> Statements {
        Statements::new(schema)
    }

    fn shared_statements(statements: &Statements) -> Shared {
        shared_of!(statements)
    }
}

impl Guards for Postgres {
    /// A plan for all calls cannot skip a day: it locks every day until the transaction ends. That
    /// blocks the sweep of expired days and fills the server's lock table. PostgreSQL makes such a
    /// plan at the sixth call of a prepared statement, if only to compare costs. So these plans are
    /// not kept, which costs one more round trip. Inserts lock only the day of their row, so their
    /// plans are kept.
    const KEEPS_PLANS: bool = false;
    const INSERTS_NOTHING_FORGOTTEN: bool = false;

    async fn begin_writing(
        connection: PoolConnection<Self>,
    ) -> Result<Transaction<'static, Self>, sqlx::Error> {
        Transaction::begin(connection, None).await
    }

    async fn begin_durable(
        connection: PoolConnection<Self>,
    ) -> Result<Transaction<'static, Self>, sqlx::Error> {
        Transaction::begin(connection, Some(BEGIN_DURABLE.into_sql_str())).await
    }

    async fn limit_lock_waits(tx: &mut PgConnection, limit: Duration) -> Result<(), sqlx::Error> {
        let limit = limit.as_millis().to_string();
        sqlx::query("SELECT set_config('lock_timeout', $1, true)").bind(limit).execute(tx).await.map(drop)
    }

    fn session_of(row: &Row<Self>) -> Result<Option<Session>, sqlx::Error> {
        Ok(Some(Session { process: row.get("process")?, transaction: row.get("transaction")? }))
    }

    /// A missing partition is a check violation without a constraint name. A day that is forgotten
    /// but not dropped yet has a named check.
    fn is_of_forgotten_day(error: &sqlx::Error) -> bool {
        let is_of_day = |constraint: Option<&str>| constraint.is_none_or(|name| name == FORGOTTEN);
        has_code(error, "23514")
            && error.as_database_error().is_some_and(|answer| is_of_day(answer.constraint()))
    }

    async fn insert_batch(
        connection: &mut PgConnection,
        tables: &Tables<Self>,
        rows: &[NewRow<'_>],
        mark: Mark,
    ) -> Result<Vec<Inserted>, sqlx::Error> {
        let keys: Vec<_> = rows.iter().map(|row| row.key).collect();
        // One order across all statements, so that two racing batches wait for each other instead
        // of deadlocking.
        let mut ordered: Vec<_> = rows.iter().collect();
        ordered.sort_unstable_by_key(|row| (row.key.id, row.key.tenant));
        let mut found = HashMap::with_capacity(rows.len());
        for some in ordered.chunks(INSERTED_MAX) {
            match insert_some(connection, &tables.own, some, mark).await {
                Err(error) if Self::is_of_forgotten_day(&error) => {
                    return Ok(vec![Inserted::Forgotten; keys.len()]);
                }
                // RETURNING has no order of its own.
                inserted => {
                    for row in inserted? {
                        found.insert(place(&row)?, rows::inserted(&row)?);
                    }
                }
            }
        }
        let place_of = |key: &Key<'_>| (key.id, key.tenant.to_owned());
        let rest: Vec<_> = keys.iter().filter(|key| !found.contains_key(&place_of(key))).copied().collect();
        for row in find_batch(connection, &tables.own, &rest).await? {
            found.insert(place(&row)?, Inserted::Exists(rows::stored(&row)?));
        }
        let inserted = |key: &Key<'_>| found.get(&place_of(key)).cloned().ok_or(sqlx::Error::RowNotFound);
        keys.iter().map(inserted).collect()
    }

    async fn has_marked(
        connection: &mut PgConnection,
        _tables: &Tables<Self>,
        marked: &[Key<'_>],
    ) -> Result<bool, sqlx::Error> {
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
    /// The commit waits for the disk even if the server's settings do not ask for it: the delivery
    /// is acknowledged next, and a crash must not undo the effect of a message that is never
    /// delivered again.
    ///
    /// AND CHAIN, because sqlx believes that the transaction is open until it is dropped, and then
    /// sends a ROLLBACK with the next message. Outside a transaction, each ROLLBACK would log a
    /// warning on the server.
    async fn commit(
        mut tx: Transaction<'static, Self>,
        _tables: &Tables<Self>,
        marked: &[Key<'_>],
    ) -> Result<Outcome<Self>, sqlx::Error> {
        let look_and_commit = format!(
            "SELECT CASE WHEN marks = '{}' THEN 0 ELSE (marks || '{MARKS_ARE_GONE}')::int END, \
             {} FROM (SELECT coalesce(nullif(current_setting('inbox.marks', true), ''), '0') OFFSET 0) AS m (marks); \
             COMMIT AND CHAIN",
            marked.len(),
            migrations::waits_for_the_disk!()
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
}

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
) -> Result<Vec<Row<Postgres>>, sqlx::Error> {
    let Some(NewRow { key: Key { consumer, .. }, .. }) = rows.first() else { return Ok(Vec::new()) };
    let keys: Vec<_> = rows.iter().map(|row| row.key).collect();
    let Columns { ids, tenants } = Columns::of(&keys);
    let fingerprints: Vec<_> = rows.iter().map(|row| &row.content.fingerprint.as_bytes()[..]).collect();
    let sources: Vec<_> = rows.iter().map(|row| row.content.source).collect();
    let mut canonicals: Vec<_> = rows.iter().map(|row| row.content.canonical_bytes()).collect();
    // When bytes are compared, there are no canonical fingerprints to send.
    if canonicals.iter().all(Option::is_none) {
        canonicals.clear();
    }
    let inserted = sqlx::query(&statements.insert_batch)
        .bind(consumer)
        .bind(&ids)
        .bind(&tenants)
        .bind(&fingerprints)
        .bind(mark == Mark::Yes)
        .bind(&sources)
        .bind(&canonicals)
        .fetch_all(connection)
        .await?;
    Ok(inserted.into_iter().map(Row::of).collect())
}

/// Returns the id and tenant of a row.
fn place(row: &Row<Postgres>) -> Result<(Uuid, String), sqlx::Error> {
    Ok((row.get("message_id")?, row.get("scope")?))
}

pub(super) struct Columns<'a> {
    pub(super) ids: Vec<Uuid>,
    pub(super) tenants: Vec<&'a str>,
}

impl<'a> Columns<'a> {
    pub(super) fn of(keys: &[Key<'a>]) -> Self {
        Self {
            ids: keys.iter().map(|key| key.id).collect(),
            tenants: keys.iter().map(|key| key.tenant).collect(),
        }
    }
}

async fn find_batch(
    connection: &mut PgConnection,
    statements: &Statements,
    keys: &[Key<'_>],
) -> Result<Vec<Row<Postgres>>, sqlx::Error> {
    let Some(Key { consumer, .. }) = keys.first() else { return Ok(Vec::new()) };
    let Columns { ids, tenants } = Columns::of(keys);
    let found = sqlx::query(&statements.find_batch)
        .persistent(Postgres::KEEPS_PLANS)
        .bind(consumer)
        .bind(&ids)
        .bind(&tenants)
        .bind(ids.iter().min())
        .bind(ids.iter().max())
        .fetch_all(connection)
        .await?;
    Ok(found.into_iter().map(Row::of).collect())
}

/// Text that a missing mark appends before the cast. The server repeats it in the cast's error, in
/// any language.
const MARKS_ARE_GONE: &str = " inbox marks: the transaction that admitted the messages has ended";

fn says_that_marks_are_gone(error: &sqlx::Error) -> bool {
    has_code(error, "22P02")
        && error.as_database_error().is_some_and(|answer| answer.message().contains(MARKS_ARE_GONE))
}

/// The check that refuses every row of a forgotten day.
const FORGOTTEN: &str = "inbox_message_day_is_forgotten";

pub(super) fn has_code(error: &sqlx::Error, sqlstate: &str) -> bool {
    error.as_database_error().is_some_and(|answer| answer.code().as_deref() == Some(sqlstate))
}
