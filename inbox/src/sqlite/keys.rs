//! Idempotency keys on SQLite: the one writer there is makes every step atomic.

use std::time::Duration;

use migrations::{Identifier, Statement, Template};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, Sqlite, SqliteConnection, SqlitePool, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;

use super::values;
use crate::keys::judge::{Decision as Judgement, judge};
use crate::keys::record::{Found, Record, State};
use crate::keys::store::{Ask, Change, KeyStore, stuck_key};
use crate::keys::{Decision, Ending, KeyId, StuckKey};

type Result<T> = std::result::Result<T, sqlx::Error>;

/// The statements of one slot.
#[derive(Debug)]
struct Slot {
    insert: Statement,
    remove: Statement,
    change: Statement,
    undecided: [Statement; 3],
    empty: Statement,
}

/// The rendered SQL: one set for each slot.
#[derive(Debug)]
pub struct KeyStatements {
    slots: [Slot; 3],
}

const NOW: &str = "SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
const RING: &str = "SELECT generation, started_at, retention FROM idempotency_ring";
const FIND: &str = "SELECT * FROM idempotency_key WHERE scope = $1 AND operation = $2 AND key = $3";
const INSERT: &str = "INSERT INTO idempotency_key_{slot} (scope, operation, key, fingerprint, state, attempt, holder, \
    lease_until, outcome, claimed_at, processed_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
const REMOVE: &str = "DELETE FROM idempotency_key_{slot} WHERE scope = $1 AND operation = $2 AND key = $3";
const CHANGE: &str = "UPDATE idempotency_key_{slot} SET state = $4, lease_until = $5, outcome = $6, claimed_at = $7, \
    processed_at = $8, expires_at = $7 + (expires_at - claimed_at), decided_by = $9 \
    WHERE scope = $1 AND operation = $2 AND key = $3";
/// Moves what nobody has completed into another slot.
const UNDECIDED: &str =
    "INSERT INTO idempotency_key_{to} SELECT * FROM idempotency_key_{slot} WHERE state = 'in_progress'";
/// One key into another slot.
const MOVE: &str = "INSERT INTO idempotency_key_{to} SELECT * FROM idempotency_key_{slot} \
    WHERE scope = $1 AND operation = $2 AND key = $3";
/// Without a condition: SQLite frees the pages and looks at no row.
const EMPTY: &str = "DELETE FROM idempotency_key_{slot}";
const STUCK: &str = "SELECT scope, operation, key, attempt, claimed_at, lease_until FROM idempotency_key \
    WHERE state = 'in_progress' AND lease_until <= CAST(unixepoch('subsec') * 1000000 AS INTEGER) \
    ORDER BY lease_until LIMIT $1";
const RETAIN: &str = "UPDATE idempotency_ring SET retention = $1 WHERE retention < $1";
const TURN: &str = "UPDATE idempotency_ring SET generation = generation + 1, started_at = $1";

/// The ring and the clock, as one transaction sees them.
struct Ring {
    generation: i64,
    started_at: i64,
    retention: i64,
    now: i64,
}

impl Ring {
    async fn read(connection: &mut SqliteConnection) -> Result<Self> {
        let now = sqlx::query_scalar(NOW).fetch_one(&mut *connection).await?;
        let (generation, started_at, retention) = sqlx::query_as(RING).fetch_one(connection).await?;
        Ok(Self { generation, started_at, retention, now })
    }

    fn is_due(&self) -> bool {
        self.now >= self.started_at + self.retention / 2
    }

    /// The slot that takes new keys, and the one that is emptied next.
    fn slots(&self) -> (usize, usize) {
        let newest = usize::try_from(self.generation.rem_euclid(3)).unwrap_or(0);
        (newest, (newest + 1) % 3)
    }
}

impl KeyStore for Sqlite {
    type KeyStatements = KeyStatements;
    /// The row that was written tells it all.
    type Held = ();

    fn key_statements(_schema: Option<&Identifier>) -> KeyStatements {
        let slot = |slot: i64| {
            let render = |text| Template::new(text).integer("slot", slot).render();
            let to = |to: i64| Template::new(UNDECIDED).integer("slot", slot).integer("to", to).render();
            Slot {
                insert: render(INSERT),
                remove: render(REMOVE),
                change: render(CHANGE),
                undecided: [to(0), to(1), to(2)],
                empty: render(EMPTY),
            }
        };
        KeyStatements { slots: [slot(0), slot(1), slot(2)] }
    }

    async fn claim(pool: &SqlitePool, statements: &KeyStatements, ask: &Ask) -> Result<Found> {
        let mut tx = Self::begin_holding(pool).await?;
        let found = look(&mut tx, statements, ask, true).await?;
        tx.commit().await?;
        Ok(found)
    }

    /// IMMEDIATE waits for the write lock within the busy timeout; upgrading later fails at once with BUSY.
    async fn begin_holding(pool: &SqlitePool) -> Result<Transaction<'static, Self>> {
        pool.begin_with("BEGIN IMMEDIATE").await
    }

    async fn probe(connection: &mut SqliteConnection) -> Result<()> {
        sqlx::query("SELECT 1").execute(connection).await.map(drop)
    }

    async fn hold(
        connection: &mut SqliteConnection,
        statements: &KeyStatements,
        ask: &Ask,
    ) -> Result<(Found, ())> {
        Ok((look(connection, statements, ask, false).await?, ()))
    }

    /// The row that [`hold`](Self::hold) has written is there only in that very transaction.
    async fn finish(
        connection: &mut SqliteConnection,
        statements: &KeyStatements,
        ask: &Ask,
        _held: (u32, &()),
        (ending, outcome): (Ending, &[u8]),
    ) -> Result<bool> {
        let now: i64 = sqlx::query_scalar(NOW).fetch_one(&mut *connection).await?;
        let Some((slot, record)) = find(connection, &ask.id).await? else { return Ok(false) };
        if record.holder != ask.asked.holder || !matches!(record.state, State::InProgress { .. }) {
            return Ok(false);
        }
        write(connection, &statements.slots[slot], &ask.id, (State::Ended(ending), Some(outcome)), now, None)
            .await
    }

    async fn change(
        pool: &SqlitePool,
        statements: &KeyStatements,
        id: &KeyId,
        holder: Uuid,
        change: Change<'_>,
    ) -> Result<Option<Record>> {
        let mut tx = Self::begin_holding(pool).await?;
        let ring = Ring::read(&mut tx).await?;
        let Some((slot, record)) = find(&mut tx, id).await? else { return Ok(None) };
        let State::InProgress { lease_until } = record.state else { return Ok(Some(record)) };
        if record.holder != holder {
            return Ok(Some(record));
        }
        let (state, outcome) = match change {
            Change::End(ending, outcome) => (State::Ended(ending), Some(outcome)),
            Change::Release => (State::Released, None),
            Change::Renew(lease) => {
                let renewed = values::time(ring.now.saturating_add(values::span(lease)))?;
                (State::InProgress { lease_until: renewed.max(lease_until) }, None)
            }
        };
        let slot = refresh(&mut tx, statements, id, slot, &ring).await?;
        write(&mut tx, slot, id, (state, outcome), ring.now, None).await?;
        let changed = find(&mut tx, id).await?;
        tx.commit().await?;
        Ok(changed.map(|(_, record)| record))
    }

    async fn decide(
        pool: &SqlitePool,
        statements: &KeyStatements,
        id: &KeyId,
        decision: Decision,
        operator: &str,
    ) -> Result<bool> {
        let mut tx = Self::begin_holding(pool).await?;
        let ring = Ring::read(&mut tx).await?;
        let Some((slot, Record { state: State::InProgress { lease_until }, .. })) = find(&mut tx, id).await?
        else {
            return Ok(false);
        };
        if lease_until > values::time(ring.now)? {
            return Ok(false);
        }
        let state = match decision {
            Decision::Release => State::Released,
            Decision::Discard => State::Ended(Ending::Failed),
        };
        let slot = refresh(&mut tx, statements, id, slot, &ring).await?;
        write(&mut tx, slot, id, (state, None), ring.now, Some(operator)).await?;
        tx.commit().await?;
        Ok(true)
    }

    async fn stuck(
        connection: &mut SqliteConnection,
        _statements: &KeyStatements,
        limit: u32,
    ) -> Result<Vec<StuckKey>> {
        let rows: Vec<(String, String, String, u32, i64, i64)> =
            sqlx::query_as(STUCK).bind(limit).fetch_all(connection).await?;
        rows.into_iter()
            .map(|(scope, operation, key, attempt, claimed_at, lease_until)| {
                let times = (values::time(claimed_at)?, values::time(lease_until)?);
                stuck_key((scope, operation, key), attempt, times)
            })
            .collect()
    }

    async fn retention(connection: &mut SqliteConnection, _statements: &KeyStatements) -> Result<Duration> {
        let ring = Ring::read(connection).await?;
        Ok(Duration::from_micros(ring.retention.unsigned_abs()))
    }

    async fn retain(pool: &SqlitePool, _statements: &KeyStatements, at_least: Duration) -> Result<()> {
        sqlx::query(RETAIN).bind(values::span(at_least)).execute(pool).await?;
        Ok(())
    }

    async fn rotate(pool: &SqlitePool, statements: &KeyStatements) -> Result<bool> {
        let mut tx = Self::begin_holding(pool).await?;
        let ring = Ring::read(&mut tx).await?;
        if !ring.is_due() {
            return Ok(false);
        }
        let (newest, oldest) = ring.slots();
        sqlx::query(&statements.slots[oldest].undecided[newest]).execute(&mut *tx).await?;
        sqlx::query(&statements.slots[oldest].empty).execute(&mut *tx).await?;
        sqlx::query(TURN).bind(ring.now).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(true)
    }
}

/// Reads a key, and writes it down as held when it is free. A lease answers with the row as it is then, a transaction with
/// the row as it was.
async fn look(
    connection: &mut SqliteConnection,
    statements: &KeyStatements,
    ask: &Ask,
    on_lease: bool,
) -> Result<Found> {
    let ring = Ring::read(connection).await?;
    let known = find(connection, &ask.id).await?;
    let found = |record| {
        Ok(Found { is_busy: false, read_at: values::time(ring.now)?, rotation_is_due: ring.is_due(), record })
    };
    let slot = known.as_ref().map(|(slot, _)| *slot);
    let before = found(known.map(|(_, record)| record))?;
    let Judgement::Take { attempt } = judge(before.clone(), &ask.asked) else { return Ok(before) };
    if let Some(slot) = slot {
        bind_id(sqlx::query(&statements.slots[slot].remove), &ask.id).execute(&mut *connection).await?;
    }
    let insert = &statements.slots[ring.slots().0].insert;
    bind_id(sqlx::query(insert), &ask.id)
        .bind(&ask.asked.fingerprint.as_bytes()[..])
        .bind("in_progress")
        .bind(attempt)
        .bind(values::text(ask.asked.holder))
        .bind(ring.now.saturating_add(values::span(ask.lease)))
        .bind(None::<Vec<u8>>)
        .bind(ring.now)
        .bind(None::<i64>)
        .bind(ring.now.saturating_add(values::span(ask.retention)))
        .execute(&mut *connection)
        .await?;
    if !on_lease {
        return Ok(before);
    }
    found(find(connection, &ask.id).await?.map(|(_, record)| record))
}

/// Moves a key into the newest slot, so that it is kept for the whole retention from now on. The slot.
async fn refresh<'a>(
    connection: &mut SqliteConnection,
    statements: &'a KeyStatements,
    id: &KeyId,
    slot: usize,
    ring: &Ring,
) -> Result<&'a Slot> {
    let (newest, _) = ring.slots();
    if slot != newest {
        let number = |slot: usize| i64::try_from(slot).unwrap_or(0);
        let to_newest =
            Template::new(MOVE).integer("slot", number(slot)).integer("to", number(newest)).render();
        bind_id(sqlx::query(&to_newest), id).execute(&mut *connection).await?;
        bind_id(sqlx::query(&statements.slots[slot].remove), id).execute(&mut *connection).await?;
    }
    Ok(&statements.slots[newest])
}

async fn write(
    connection: &mut SqliteConnection,
    slot: &Slot,
    id: &KeyId,
    (state, outcome): (State, Option<&[u8]>),
    now: i64,
    operator: Option<&str>,
) -> Result<bool> {
    let lease_until = match state {
        State::InProgress { lease_until } => Some(values::micros(lease_until)),
        _ => None,
    };
    let written = bind_id(sqlx::query(&slot.change), id)
        .bind(state.as_str())
        .bind(lease_until)
        .bind(outcome)
        .bind(now)
        .bind(matches!(state, State::Ended(_)).then_some(now))
        .bind(operator)
        .execute(connection)
        .await?;
    Ok(written.rows_affected() == 1)
}

async fn find(connection: &mut SqliteConnection, id: &KeyId) -> Result<Option<(usize, Record)>> {
    let row = bind_id(sqlx::query(FIND), id).fetch_optional(connection).await?;
    row.as_ref().map(record).transpose()
}

type Query<'q> = sqlx::query::Query<'q, Sqlite, <Sqlite as sqlx::Database>::Arguments>;

fn bind_id<'q>(query: Query<'q>, id: &'q KeyId) -> Query<'q> {
    query.bind(id.scope().as_str()).bind(id.operation().as_str()).bind(id.key().as_str())
}

fn record(row: &SqliteRow) -> Result<(usize, Record)> {
    let time = |column| row.try_get::<Option<i64>, _>(column)?.map(values::time).transpose();
    let state: String = row.try_get("state")?;
    let fingerprint: Vec<u8> = row.try_get("fingerprint")?;
    let holder: uuid::fmt::Hyphenated = row.try_get("holder")?;
    let record = Record {
        fingerprint: values::fingerprint(&fingerprint)?,
        state: State::of_columns(&state, time("lease_until")?)?,
        attempt: row.try_get("attempt")?,
        holder: holder.into_uuid(),
        outcome: row.try_get("outcome")?,
        processed_at: time("processed_at")?,
        expires_at: time("expires_at")?.unwrap_or(OffsetDateTime::UNIX_EPOCH),
    };
    let slot: i64 = row.try_get("slot")?;
    Ok((usize::try_from(slot).unwrap_or(0), record))
}
