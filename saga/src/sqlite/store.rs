//! The operations of sagas that are specific to SQLite: one row after the other. SQLite takes no
//! arrays, and without a server there are no round trips to save.

use std::collections::HashSet;
use std::time::Duration;

use migrations::query::Query;
use migrations::{Backend as _, Identifier};
use sqlx::pool::PoolConnection;
use sqlx::{Connection as _, Sqlite, SqliteConnection, Transaction};
use time::OffsetDateTime;

use super::statements::Statements;
use crate::dialect::Store;
use crate::record::{Held, SagaKind};
use crate::retention::BATCH;
use crate::statements::{Shared, shared_of};

type Result<T> = std::result::Result<T, sqlx::Error>;

fn of_held(statement: &migrations::Statement, held: &Held) -> Query<Sqlite> {
    Query::new(statement).bind(held.id.saga_type()).bind(held.id.id()).bind(held.worker.as_str())
}

impl Store for Sqlite {
    type SagaStatements = Statements;

    const BEGIN_BY_INDEX: &'static str = "BEGIN";
    const BEGIN_CHANGE_BY_INDEX: &'static str = "BEGIN IMMEDIATE";

    fn saga_statements(schema: Option<&Identifier>) -> Statements {
        Statements::new(schema)
    }

    fn shared(statements: &Statements) -> Shared {
        shared_of!(statements)
    }

    /// IMMEDIATE waits for the write lock within the busy timeout; upgrading later fails at once.
    async fn begin_saga(connection: PoolConnection<Self>) -> Result<Transaction<'static, Self>> {
        migrations::begin_durable(connection, "BEGIN IMMEDIATE").await
    }

    async fn may_commit_effect(connection: &mut SqliteConnection) -> Result<bool> {
        Self::is_marked(connection).await
    }

    async fn renew_sagas(
        connection: &mut SqliteConnection,
        statements: &Statements,
        held: &[Held],
        lease: Duration,
    ) -> Result<HashSet<Held>> {
        let mut renewed = HashSet::new();
        for held in held {
            if of_held(&statements.renew, held).bind(lease).changes_one(&mut *connection).await? {
                renewed.insert(held.clone());
            }
        }
        Ok(renewed)
    }

    async fn due_kinds(
        connection: &mut SqliteConnection,
        statements: &Statements,
        kinds: &[SagaKind],
    ) -> Result<Vec<bool>> {
        let mut due = Vec::with_capacity(kinds.len());
        for SagaKind { saga_type, version } in kinds {
            let query = Query::<Self>::new(&statements.find_due).bind(saga_type).bind(*version);
            due.push(query.first(&mut *connection).await?.is_some());
        }
        Ok(due)
    }

    async fn finish_sagas(
        connection: &mut SqliteConnection,
        statements: &Statements,
        endings: &[(&Held, &str)],
    ) -> Result<Vec<bool>> {
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        let mut finished = Vec::with_capacity(endings.len());
        for (held, output) in endings {
            finished.push(of_held(&statements.finish, held).bind(*output).changes_one(&mut tx).await?);
        }
        tx.commit().await?;
        Ok(finished)
    }

    async fn forget_sagas(
        connection: &mut SqliteConnection,
        statements: &Statements,
        retention: Duration,
        until: OffsetDateTime,
    ) -> Result<u64> {
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        let old = Query::<Self>::new(&statements.old).bind(retention).bind(BATCH).bind(until);
        let old = old.rows(&mut tx).await?;
        for row in &old {
            let (saga_type, id): (String, String) = (row.get("type")?, row.get("id")?);
            for statement in [&statements.forget, &statements.forget_steps, &statements.forget_replies] {
                Query::<Self>::new(statement).bind(&saga_type).bind(&id).run(&mut tx).await?;
            }
        }
        tx.commit().await?;
        Ok(old.len() as u64)
    }
}
