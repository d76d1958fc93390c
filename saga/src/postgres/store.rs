//! The operations of sagas that are specific to PostgreSQL: many rows with one statement.

use std::collections::HashSet;
use std::time::Duration;

use migrations::Identifier;
use migrations::query::{Query, micros};
use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres, Transaction};
use time::OffsetDateTime;

use super::statements::Statements;
use crate::dialect::Store;
use crate::record::{Held, SagaKind};
use crate::retention::BATCH;
use crate::statements::{Shared, shared_of};

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Sagas as arrays of their columns.
struct Columns<'a> {
    types: Vec<&'a str>,
    ids: Vec<&'a str>,
    workers: Vec<&'a str>,
}

impl<'a> Columns<'a> {
    fn of(held: impl Iterator<Item = &'a Held> + Clone) -> Self {
        Self {
            types: held.clone().map(|held| held.id.saga_type()).collect(),
            ids: held.clone().map(|held| held.id.id()).collect(),
            workers: held.map(|held| held.worker.as_str()).collect(),
        }
    }
}

/// Begins a transaction whose statements use an index and sort no table.
macro_rules! begin_by_index {
    ($begin:literal) => {
        concat!(
            $begin,
            "; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off"
        )
    };
}

impl Store for Postgres {
    type SagaStatements = Statements;

    /// The settings hold for any statistics.
    const BEGIN_BY_INDEX: &'static str =
        concat!(begin_by_index!("BEGIN READ ONLY"), "; SET LOCAL enable_incremental_sort = off");
    const BEGIN_CHANGE_BY_INDEX: &'static str = begin_by_index!("BEGIN ISOLATION LEVEL READ COMMITTED");

    fn saga_statements(schema: Option<&Identifier>) -> Statements {
        Statements::new(schema)
    }

    fn shared(statements: &Statements) -> Shared {
        shared_of!(statements)
    }

    async fn begin_saga(connection: PoolConnection<Self>) -> Result<Transaction<'static, Self>> {
        Transaction::begin(connection, None).await
    }

    /// The statement itself checks this, which saves a round trip.
    async fn may_commit_effect(_connection: &mut PgConnection) -> Result<bool> {
        Ok(true)
    }

    async fn renew_sagas(
        connection: &mut PgConnection,
        statements: &Statements,
        held: &[Held],
        lease: Duration,
    ) -> Result<HashSet<Held>> {
        let Columns { types, ids, workers } = Columns::of(held.iter());
        let query = sqlx::query_as(&statements.renew).bind(types).bind(ids).bind(workers).bind(micros(lease));
        let renewed: HashSet<(String, String, String)> =
            query.fetch_all(connection).await?.into_iter().collect();
        let is_renewed = |held: &Held| {
            renewed.contains(&(held.id.saga_type().to_owned(), held.id.id().to_owned(), held.worker.clone()))
        };
        Ok(held.iter().filter(|held| is_renewed(held)).cloned().collect())
    }

    async fn due_kinds(
        connection: &mut PgConnection,
        statements: &Statements,
        kinds: &[SagaKind],
    ) -> Result<Vec<bool>> {
        let types: Vec<&str> = kinds.iter().map(|kind| kind.saga_type.as_str()).collect();
        let versions: Vec<i32> = kinds.iter().map(|kind| i32::from(kind.version)).collect();
        let query = sqlx::query_scalar(&statements.due_kinds).bind(types).bind(versions);
        let due: HashSet<i64> = query.fetch_all(connection).await?.into_iter().collect();
        Ok((1_i64..).zip(kinds).map(|(place, _)| due.contains(&place)).collect())
    }

    async fn finish_sagas(
        connection: &mut PgConnection,
        statements: &Statements,
        endings: &[(&Held, &str)],
    ) -> Result<Vec<bool>> {
        let Columns { types, ids, workers } = Columns::of(endings.iter().map(|(held, _)| *held));
        let outputs: Vec<&str> = endings.iter().map(|(_, output)| *output).collect();
        let query = sqlx::query_as(&statements.finish_many).bind(types).bind(ids).bind(workers).bind(outputs);
        let ended: HashSet<(String, String)> = query.fetch_all(connection).await?.into_iter().collect();
        let has_ended = |held: &Held| {
            let id = (held.id.saga_type().to_owned(), held.id.id().to_owned());
            ended.contains(&id)
        };
        Ok(endings.iter().map(|(held, _)| has_ended(held)).collect())
    }

    async fn forget_sagas(
        connection: &mut PgConnection,
        statements: &Statements,
        retention: Duration,
        until: OffsetDateTime,
    ) -> Result<u64> {
        let query = Query::<Self>::new(&statements.forget).bind(retention).bind(until).bind(BATCH);
        query.first(connection).await?.map_or(Ok(0), |row| row.get("gone"))
    }
}
