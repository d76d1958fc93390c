//! The operations of idempotency keys that are specific to PostgreSQL: locks, and changes that one
//! statement decides.

use std::time::Duration;

use message::Fingerprint;
use migrations::own_transaction::MARK;
use migrations::query::{Query, Row};
use migrations::{Identifier, Template};
use outbox::{Bounded, Signature};
use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, SqlSafeStr as _, Transaction};
use uuid::Uuid;

use super::statements::{BEGIN, BY_INDEXES, Statements, UNDO};
use crate::record::{Record, State};
use crate::statements::{Shared, shared_of};
use crate::store::{Ask, Change, End, KeyStore, KeyTables};
use crate::tables::{of_existing, of_key};
use crate::{Action, Ending, KeyId, rows};

type Result<T> = std::result::Result<T, sqlx::Error>;

/// The rendered SQL, and the schema of the table, whose locks are not those of another table.
#[derive(Debug)]
pub struct KeyStatements {
    schema: Option<Identifier>,
    sql: Statements,
}

impl KeyStore for Postgres {
    type KeyStatements = KeyStatements;

    /// A plan from the time when the table was small would read all of it when it is large.
    const KEEPS_PLANS: bool = false;
    const LEASES_ALWAYS: bool = false;

    fn key_statements(schema: Option<&Identifier>) -> KeyStatements {
        KeyStatements { schema: schema.cloned(), sql: Statements::new(schema) }
    }

    fn shared_key_statements(KeyStatements { sql, .. }: &KeyStatements) -> Shared {
        shared_of!(sql)
    }

    async fn begin_holding(
        connection: PoolConnection<Self>,
        tables: &KeyTables<Self>,
        ask: &Ask,
    ) -> Result<Transaction<'static, Self>> {
        let begin = Template::new(BEGIN)
            .integer("idle_ms", i64::try_from(ask.lease.as_millis()).unwrap_or(i64::MAX))
            .integer("lock", number(&ask.id.hash()))
            .schema(tables.own.schema.as_ref())
            .uuid("holder", ask.asked.holder);
        Transaction::begin(connection, Some((&begin.render()).into_sql_str())).await
    }

    /// Sets the isolation level itself, as a transaction that holds a key does, because the role's
    /// default may differ.
    async fn begin_plain(connection: PoolConnection<Self>) -> Result<Transaction<'static, Self>> {
        let begin = format!("SET TRANSACTION ISOLATION LEVEL READ COMMITTED; {MARK}; BEGIN");
        Transaction::begin(connection, Some(AssertSqlSafe(begin).into_sql_str())).await
    }

    async fn undo(connection: &mut PgConnection) -> Result<()> {
        sqlx::raw_sql(UNDO).execute(connection).await.map(drop)
    }

    /// The statement itself checks this, which saves a round trip.
    async fn may_finish(_connection: &mut PgConnection) -> Result<bool> {
        Ok(true)
    }

    async fn change(
        pool: &PgPool,
        tables: &KeyTables<Self>,
        id: &KeyId,
        holder: Uuid,
        change: Change<'_>,
    ) -> Result<Option<Record>> {
        let mut connection = pool.acquire().await?;
        let sql = &tables.own.sql;
        let to = |state: &str, outcome: Option<&[u8]>, lease: Option<Duration>| {
            of_key::<Self>(&sql.change, id).bind(holder).bind(state).bind(outcome).bind(lease)
        };
        let change = match change {
            Change::End(End { ending, outcome }) => to(State::Ended(ending).as_str(), Some(outcome), None),
            Change::Release => to(State::Released.as_str(), None, None),
            Change::Renew(lease) => to("in_progress", None, Some(lease)),
            Change::Lapse => of_key(&sql.lapse, id).bind(holder),
        };
        match of_existing(change).first(&mut connection).await? {
            Some(row) => rows::record(&row).map(Some),
            None => tables.find(&mut connection, id).await,
        }
    }

    async fn decide(
        pool: &PgPool,
        tables: &KeyTables<Self>,
        id: &KeyId,
        holder: Option<Uuid>,
        action: Action,
        signature: &Signature,
    ) -> Result<bool> {
        let state = match action {
            Action::Release => State::Released,
            Action::Discard => State::Ended(Ending::Failed),
        };
        let decide = of_key::<Self>(&tables.own.sql.decide, id).bind(state.as_str());
        let decide = signature.bind(decide).bind(action.as_str()).bind(holder);
        of_existing(decide).changes_one(&mut *pool.acquire().await?).await
    }

    async fn rows_of_stuck(db: &Bounded<Self>, query: Query<Self>) -> Result<Vec<Row<Self>>> {
        let mut tx = db.begin(|it| Transaction::begin(it, Some(BY_INDEXES.into_sql_str()))).await?;
        let read = async {
            let found = query.rows(&mut tx).await?;
            tx.commit().await?;
            Ok(found)
        };
        db.call(read).await
    }
}

/// Returns the lock number of a key. Two keys with the same number only wait for each other.
fn number(hash: &Fingerprint) -> i64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash.as_bytes()[..8]);
    i64::from_be_bytes(bytes)
}
