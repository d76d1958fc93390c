//! The operations of idempotency keys that are specific to SQLite: changes of a key are decided
//! here, because its transaction excludes all other writers.

use message::ahead;
use migrations::query::{Query, Row, at_micros, micros};
use migrations::{Backend as _, Identifier};
use outbox::{Bounded, Signature, begin_on};
use sqlx::pool::PoolConnection;
use sqlx::{Sqlite, SqliteConnection, SqlitePool, Transaction};
use uuid::Uuid;

use super::statements::{HOLD, Statements, UNDO};
use crate::options::LEASE_MAX;
use crate::record::{Record, State};
use crate::statements::{Shared, shared_of};
use crate::store::{Ask, Change, End, KeyStore, KeyTables};
use crate::tables::of_key;
use crate::{Action, Ending, KeyId};

type Result<T> = std::result::Result<T, sqlx::Error>;

impl KeyStore for Sqlite {
    type KeyStatements = Statements;

    const KEEPS_PLANS: bool = true;
    const LEASES_ALWAYS: bool = true;

    fn key_statements(schema: Option<&Identifier>) -> Statements {
        Statements::new(schema)
    }

    fn shared_key_statements(statements: &Statements) -> Shared {
        shared_of!(statements)
    }

    async fn begin_holding(
        connection: PoolConnection<Self>,
        _tables: &KeyTables<Self>,
        _ask: &Ask,
    ) -> Result<Transaction<'static, Self>> {
        let mut tx = Self::begin_plain(connection).await?;
        sqlx::raw_sql(HOLD).execute(&mut *tx).await?;
        Ok(tx)
    }

    async fn begin_plain(connection: PoolConnection<Self>) -> Result<Transaction<'static, Self>> {
        Self::begin_marked(connection).await
    }

    async fn undo(connection: &mut SqliteConnection) -> Result<()> {
        sqlx::raw_sql(UNDO).execute(connection).await.map(drop)
    }

    /// Uses the savepoint, which exists only in the transaction that claimed the key.
    async fn may_finish(connection: &mut SqliteConnection) -> Result<bool> {
        Ok(sqlx::raw_sql("RELEASE SAVEPOINT idempotency_claim").execute(connection).await.is_ok())
    }

    async fn change(
        pool: &SqlitePool,
        tables: &KeyTables<Self>,
        id: &KeyId,
        holder: Uuid,
        change: Change<'_>,
    ) -> Result<Option<Record>> {
        let mut tx = begin_on(Self::acquire_outside(pool).await?, Self::begin_plain).await?;
        let now = now(&mut tx, tables).await?;
        let Some(record) = tables.find(&mut tx, id).await? else { return Ok(None) };
        let State::InProgress { lease_until } = record.state else { return Ok(Some(record)) };
        if record.holder != holder {
            return Ok(Some(record));
        }
        let in_progress = |lease_until| Written::from(State::InProgress { lease_until });
        let written = match change {
            Change::End(End { ending, outcome }) => {
                Written { outcome: Some(outcome), ..State::Ended(ending).into() }
            }
            Change::Release => State::Released.into(),
            Change::Renew(lease) => in_progress(at_micros(now.saturating_add(micros(lease)))?),
            Change::Lapse => in_progress(at_micros(now)?.min(lease_until)),
        };
        write(&mut tx, tables, id, written, now).await?;
        let changed = tables.find(&mut tx, id).await?;
        tx.commit().await?;
        Ok(changed)
    }

    async fn decide(
        pool: &SqlitePool,
        tables: &KeyTables<Self>,
        id: &KeyId,
        holder: Option<Uuid>,
        action: Action,
        signature: &Signature,
    ) -> Result<bool> {
        let mut tx = begin_on(Self::acquire_outside(pool).await?, Self::begin_plain).await?;
        let now = now(&mut tx, tables).await?;
        let Some(record) = tables.find(&mut tx, id).await? else { return Ok(false) };
        let State::InProgress { lease_until } = record.state else { return Ok(false) };
        let now_at = at_micros(now)?;
        let is_leased = lease_until > now_at && lease_until <= ahead(now_at, LEASE_MAX);
        if is_leased || holder.is_some_and(|holder| holder != record.holder) {
            return Ok(false);
        }
        let state = match action {
            Action::Release => State::Released,
            Action::Discard => State::Ended(Ending::Failed),
        };
        write(&mut tx, tables, id, Written { operator: Some(&signature.actor), ..state.into() }, now).await?;
        let audit = signature.bind(of_key::<Self>(&tables.own.note, id)).bind(action.as_str());
        audit.run(&mut tx).await?;
        tx.commit().await?;
        Ok(true)
    }

    async fn rows_of_stuck(db: &Bounded<Self>, query: Query<Self>) -> Result<Vec<Row<Self>>> {
        db.call(async { query.rows(&mut *db.pool().acquire().await?).await }).await
    }
}

async fn now(connection: &mut SqliteConnection, tables: &KeyTables<Sqlite>) -> Result<i64> {
    Query::<Sqlite>::new(&tables.own.clock).one(connection).await?.get("now")
}

/// The columns of a key that a change writes.
struct Written<'a> {
    state: State,
    outcome: Option<&'a [u8]>,
    /// The operator who decided, if one did.
    operator: Option<&'a str>,
}

impl From<State> for Written<'_> {
    fn from(state: State) -> Self {
        Self { state, outcome: None, operator: None }
    }
}

async fn write(
    connection: &mut SqliteConnection,
    tables: &KeyTables<Sqlite>,
    id: &KeyId,
    Written { state, outcome, operator }: Written<'_>,
    now: i64,
) -> Result<()> {
    of_key::<Sqlite>(&tables.own.change, id)
        .bind(state.as_str())
        .bind(state.lease_until())
        .bind(outcome)
        .bind(now)
        .bind(matches!(state, State::Ended(_)).then_some(now))
        .bind(operator)
        .run(connection)
        .await
        .map(drop)
}
