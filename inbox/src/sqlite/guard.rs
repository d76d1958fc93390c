//! Admits messages on SQLite.

use migrations::query::{Query, Row};
use migrations::{Identifier, begin_durable};
use sqlx::pool::PoolConnection;
use sqlx::{Sqlite, SqliteConnection, Transaction};

use super::statements::Statements;
use crate::dialect::{Guards, Inserted, Mark, NewRow, Outcome, Session};
use crate::ids::Key;
use crate::statements::{Shared, Texts, shared_of};
use crate::tables::{Tables, of_key};

impl Texts for Sqlite {
    type Statements = Statements;

    fn statements(schema: Option<&Identifier>) -> Statements {
        Statements::new(schema)
    }

    fn shared_statements(statements: &Statements) -> Shared {
        shared_of!(statements)
    }
}

impl Guards for Sqlite {
    const KEEPS_PLANS: bool = true;
    /// The insert compares the id with the floor of memory.
    const INSERTS_NOTHING_FORGOTTEN: bool = true;

    /// Uses IMMEDIATE, which waits for the write lock within the busy timeout; a later upgrade
    /// fails at once with BUSY.
    async fn begin_writing(
        connection: PoolConnection<Self>,
    ) -> Result<Transaction<'static, Self>, sqlx::Error> {
        begin_durable(connection, "BEGIN IMMEDIATE").await
    }

    /// Returns `None`, as [`session`](Self::session) does.
    fn session_of(_row: &Row<Self>) -> Result<Option<Session>, sqlx::Error> {
        Ok(None)
    }

    fn is_of_forgotten_day(_error: &sqlx::Error) -> bool {
        false
    }

    async fn insert_batch(
        connection: &mut SqliteConnection,
        tables: &Tables<Self>,
        rows: &[NewRow<'_>],
        mark: Mark,
    ) -> Result<Vec<Inserted>, sqlx::Error> {
        let mut inserted = Vec::with_capacity(rows.len());
        for row in rows {
            inserted.push(tables.insert(connection, *row, mark).await?);
        }
        Ok(inserted)
    }

    /// Checks every row. A lookup in process is cheap, so there are no marks.
    async fn has_marked(
        connection: &mut SqliteConnection,
        tables: &Tables<Self>,
        marked: &[Key<'_>],
    ) -> Result<bool, sqlx::Error> {
        for key in marked {
            let count: Query<Self> = of_key(&tables.own.is_there, *key);
            let found: i64 = count.one(&mut *connection).await?.get("found")?;
            if found == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn commit(
        mut tx: Transaction<'static, Self>,
        tables: &Tables<Self>,
        marked: &[Key<'_>],
    ) -> Result<Outcome<Self>, sqlx::Error> {
        if !Self::has_marked(&mut tx, tables, marked).await? {
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
}
