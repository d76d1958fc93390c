//! The operations of idempotency keys on PostgreSQL.

use std::time::Duration;

use inbox::Signature;
use message::Fingerprint;
use migrations::own_transaction::MARK;
use migrations::{Identifier, Template};
use sqlx::postgres::PgRow;
use sqlx::postgres::types::PgInterval;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, Row, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;

use super::statements::{BEGIN, BY_INDEXES, Statements, UNDO};
use crate::record::{Found, Record, State};
use crate::rows::{decided, key_id};
use crate::store::{Ask, Change, End, KeyStore, TakeOver};
use crate::{Decided, Decision, Ending, KeyId, OnExpired, StuckKey};

type Result<T> = std::result::Result<T, sqlx::Error>;
type Query<'q> = sqlx::query::Query<'q, Postgres, sqlx::postgres::PgArguments>;

/// The rendered SQL, and a number that separates the locks of one schema's keys from those of
/// another schema.
#[derive(Debug)]
pub struct KeyStatements {
    place: i64,
    sql: Statements,
}

impl KeyStore for Postgres {
    type KeyStatements = KeyStatements;

    fn key_statements(schema: Option<&Identifier>) -> KeyStatements {
        let place = schema.map_or(0, |schema| number(&Fingerprint::of_parts(schema.as_str(), "", b"")));
        KeyStatements { place, sql: Statements::new(schema) }
    }

    async fn begin_holding(
        pool: &PgPool,
        statements: &KeyStatements,
        ask: &Ask,
    ) -> Result<Transaction<'static, Self>> {
        let begin = Template::new(BEGIN)
            .integer("idle_ms", i64::try_from(ask.lease.as_millis()).unwrap_or(i64::MAX))
            .integer("lock", number(&ask.id.hash()) ^ statements.place)
            .uuid("holder", ask.asked.holder);
        pool.begin_with(&begin.render()).await
    }

    /// Sets the isolation level itself, as a transaction that holds a key does, because the role's
    /// default may differ.
    async fn begin_plain(pool: &PgPool) -> Result<Transaction<'static, Self>> {
        let begin = format!("SET TRANSACTION ISOLATION LEVEL READ COMMITTED; {MARK}; BEGIN");
        pool.begin_with(AssertSqlSafe(begin)).await
    }

    async fn insert_key(
        connection: &mut PgConnection,
        statements: &KeyStatements,
        ask: &Ask,
        is_lease: bool,
    ) -> Result<Option<OffsetDateTime>> {
        let row =
            bind_claim(sqlx::query(&statements.sql.insert), ask, is_lease).fetch_optional(connection).await?;
        row.map(|row| row.try_get("claimed_at")).transpose()
    }

    /// Planned again each time, like everything that looks for a row. A plan from the time when the
    /// table was small would read all of it when it is large.
    async fn look(connection: &mut PgConnection, statements: &KeyStatements, ask: &Ask) -> Result<Found> {
        let look = bind_id(sqlx::query(&statements.sql.look), &ask.id).bind(ask.asked.holder);
        let row = look.persistent(false).fetch_one(connection).await?;
        Ok(Found {
            is_held: row.try_get("is_held")?,
            read_at: row.try_get("read_at")?,
            record: if row.try_get::<Option<&str>, _>("state")?.is_some() {
                Some(record(&row)?)
            } else {
                None
            },
        })
    }

    async fn replace(
        connection: &mut PgConnection,
        statements: &KeyStatements,
        ask: &Ask,
        is_lease: bool,
        TakeOver { attempt, known }: TakeOver<'_>,
    ) -> Result<bool> {
        let replace = bind_claim(sqlx::query(&statements.sql.replace), ask, is_lease)
            .bind(i32::try_from(attempt).unwrap_or(i32::MAX))
            .bind(known.holder)
            .bind(known.state.as_str())
            .bind(known.state.lease_until());
        Ok(replace.execute(connection).await?.rows_affected() == 1)
    }

    async fn undo(connection: &mut PgConnection) -> Result<()> {
        sqlx::raw_sql(UNDO).execute(connection).await.map(drop)
    }

    async fn finish(
        connection: &mut PgConnection,
        statements: &KeyStatements,
        ask: &Ask,
        attempt: u32,
        End { ending, outcome }: End<'_>,
    ) -> Result<bool> {
        let finished = bind_id(sqlx::query(&statements.sql.finish), &ask.id)
            .bind(&ask.asked.fingerprint.as_bytes()[..])
            .bind(ask.asked.holder)
            .bind(State::Ended(ending).as_str())
            .bind(i32::try_from(attempt).unwrap_or(i32::MAX))
            .bind(outcome)
            .bind(interval(ask.retention))
            .bind(ask.asked.on_expired == OnExpired::Refuse)
            .execute(connection)
            .await?;
        Ok(finished.rows_affected() == 1)
    }

    async fn change(
        pool: &PgPool,
        statements: &KeyStatements,
        id: &KeyId,
        holder: Uuid,
        change: Change<'_>,
    ) -> Result<Option<Record>> {
        let mut connection = pool.acquire().await?;
        let to = |state: &'static str, outcome, lease: Option<Duration>| {
            bind_id(sqlx::query(&statements.sql.change), id)
                .bind(holder)
                .bind(state)
                .bind(outcome)
                .bind(lease.map(interval))
        };
        let change = match change {
            Change::End(End { ending, outcome }) => to(State::Ended(ending).as_str(), Some(outcome), None),
            Change::Release => to(State::Released.as_str(), None, None),
            Change::Renew(lease) => to("in_progress", None, Some(lease)),
            Change::Lapse => bind_id(sqlx::query(&statements.sql.lapse), id).bind(holder),
        };
        let row = match change.persistent(false).fetch_optional(&mut *connection).await? {
            Some(row) => Some(row),
            None => {
                let find = bind_id(sqlx::query(&statements.sql.find), id).persistent(false);
                find.fetch_optional(&mut *connection).await?
            }
        };
        row.as_ref().map(record).transpose()
    }

    async fn decide(
        pool: &PgPool,
        statements: &KeyStatements,
        id: &KeyId,
        holder: Option<Uuid>,
        decision: Decision,
        Signature { actor, note, .. }: &Signature,
    ) -> Result<bool> {
        let state = match decision {
            Decision::Release => State::Released,
            Decision::Discard => State::Ended(Ending::Failed),
        };
        let decide = bind_id(sqlx::query(&statements.sql.decide), id).bind(state.as_str());
        let decide = decide.bind(actor).bind(note).bind(decision.as_str()).bind(holder);
        Ok(decide.persistent(false).execute(pool).await?.rows_affected() == 1)
    }

    async fn decisions(pool: &PgPool, statements: &KeyStatements, limit: u32) -> Result<Vec<Decided>> {
        let query = sqlx::query(&statements.sql.decisions).bind(i64::from(limit)).persistent(false);
        let rows = query.fetch_all(pool).await?;
        rows.iter().map(|row| decided(row, row.try_get("at")?)).collect()
    }

    async fn stuck(pool: &PgPool, statements: &KeyStatements, limit: u32) -> Result<Vec<StuckKey>> {
        stuck_keys(&statements.sql.stuck, pool, limit).await
    }

    async fn report(pool: &PgPool, statements: &KeyStatements, limit: u32) -> Result<Vec<StuckKey>> {
        stuck_keys(&statements.sql.report, pool, limit).await
    }

    async fn forget(
        pool: &PgPool,
        statements: &KeyStatements,
        until: OffsetDateTime,
        limit: u32,
    ) -> Result<u64> {
        let forget = sqlx::query(&statements.sql.forget).bind(i64::from(limit)).bind(until).persistent(false);
        Ok(forget.execute(pool).await?.rows_affected())
    }

    async fn forget_decisions(
        pool: &PgPool,
        statements: &KeyStatements,
        before: OffsetDateTime,
        limit: u32,
    ) -> Result<u64> {
        let forget = sqlx::query_scalar(&statements.sql.forget_decisions).bind(before);
        let forgotten: i64 = forget.bind(i32::try_from(limit).unwrap_or(i32::MAX)).fetch_one(pool).await?;
        Ok(forgotten.unsigned_abs())
    }
}

fn bind_id<'q>(query: Query<'q>, id: &'q KeyId) -> Query<'q> {
    query.bind(id.scope().as_str()).bind(id.operation().as_str()).bind(id.key().as_str())
}

fn bind_claim<'q>(query: Query<'q>, ask: &'q Ask, is_lease: bool) -> Query<'q> {
    bind_id(query, &ask.id)
        .bind(&ask.asked.fingerprint.as_bytes()[..])
        .bind(ask.asked.holder)
        .bind(is_lease.then(|| interval(ask.lease)))
        .bind(interval(ask.retention))
        .bind(ask.asked.on_expired == OnExpired::Refuse)
}

async fn stuck_keys(statement: &migrations::Statement, pool: &PgPool, limit: u32) -> Result<Vec<StuckKey>> {
    let mut tx = pool.begin_with(BY_INDEXES).await?;
    let found = sqlx::query(statement).bind(i64::from(limit)).persistent(false);
    let rows = found.fetch_all(&mut *tx).await?;
    tx.commit().await?;
    rows.iter().map(stuck_key).collect()
}

fn stuck_key(row: &PgRow) -> Result<StuckKey> {
    Ok(StuckKey {
        id: key_id(row)?,
        attempt: row.try_get::<i32, _>("attempt")?.unsigned_abs(),
        holder: row.try_get("holder")?,
        claimed_at: row.try_get("claimed_at")?,
        lease_until: row.try_get("lease_until")?,
        on_expired: OnExpired::of_column(row.try_get("refuses")?),
    })
}

/// Returns the lock number of a key. Two keys with the same number only wait for each other.
fn number(hash: &Fingerprint) -> i64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash.as_bytes()[..8]);
    i64::from_be_bytes(bytes)
}

fn interval(duration: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: i64::try_from(duration.as_micros()).unwrap_or(i64::MAX) }
}

fn record(row: &PgRow) -> Result<Record> {
    let fingerprint: [u8; 32] = row.try_get("fingerprint")?;
    Ok(Record {
        fingerprint: Fingerprint::from(fingerprint),
        state: State::of_columns(row.try_get("state")?, row.try_get("lease_until")?)?,
        attempt: row.try_get::<i32, _>("attempt")?.unsigned_abs(),
        holder: row.try_get("holder")?,
        outcome: row.try_get("outcome")?,
        processed_at: row.try_get("processed_at")?,
        expires_at: row.try_get("expires_at")?,
        refuses: row.try_get("refuses")?,
    })
}
