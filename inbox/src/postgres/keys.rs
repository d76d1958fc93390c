//! Idempotency keys on PostgreSQL: plain statements for a new key (ADR 19), functions of the database for all else.

use std::time::Duration;

use message::Fingerprint;
use migrations::{Identifier, Statement, Template};
use sqlx::postgres::PgRow;
use sqlx::postgres::types::PgInterval;
use sqlx::{PgConnection, PgPool, Postgres, Row, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::keys::record::{Found, Record, State};
use crate::keys::store::{Ask, Change, KeyStore, stuck_key};
use crate::keys::{Decision, Ending, KeyId, OnExpired, StuckKey};

type Result<T> = std::result::Result<T, sqlx::Error>;

/// The rendered SQL.
#[derive(Debug)]
pub struct KeyStatements {
    hold: Statement,
    /// One for each slot.
    insert: [Statement; 3],
    claim: Statement,
    finish: Statement,
    change: Statement,
    decide: Statement,
    stuck: Statement,
    retention: Statement,
    retain: Statement,
    rotate: Statement,
}

/// Locks the key first, and then looks: a function's statement sees what was committed before it began, so it sees whatever an
/// earlier owner of the lock has done. (This statement would not: it sees what was committed before the lock.) The same lock as
/// that of `idempotency_claim`. A CASE, because it alone settles what is evaluated first.
///
/// The server ends a transaction whose service hangs.
const HOLD: &str = "SELECT CASE WHEN pg_try_advisory_xact_lock(hashtextextended(octet_length($1) || ':' || octet_length($2) \
        || ':' || $1 || $2 || $3, '{schema}idempotency_key'::regclass::oid::bigint)) \
    THEN {schema}idempotency_slot_of_new($1, $2, $3) END AS slot, \
    now() AS begun_at, clock_timestamp() AS read_at, \
    (SELECT clock_timestamp() >= r.started_at + r.retention / 2 FROM {schema}idempotency_ring AS r) AS rotation_is_due, \
    set_config('idle_in_transaction_session_timeout', $4, true)";
/// In the transaction that has looked, and in no other one: another one has not held the key since.
const INSERT: &str = "INSERT INTO {schema}idempotency_key_{slot} (slot, scope, operation, key, fingerprint, state, attempt, \
        holder, outcome, claimed_at, processed_at, expires_at) \
    SELECT {slot}, $1, $2, $3, $4, $5, 1, $6, $7, statement_timestamp(), statement_timestamp(), statement_timestamp() + $8 \
    WHERE now() = $9";
const CLAIM: &str = "SELECT * FROM {schema}idempotency_claim($1, $2, $3, $4, $5, $6, $7, $8, $9)";
const FINISH: &str = "SELECT {schema}idempotency_finish($1, $2, $3, $4, $5, $6, $7, $8, $9)";
const CHANGE: &str = "SELECT * FROM {schema}idempotency_complete($1, $2, $3, $4, $5, $6, $7)";
const DECIDE: &str = "SELECT {schema}idempotency_decide($1, $2, $3, $4, $5)";
const STUCK: &str = "SELECT scope, operation, key, attempt, claimed_at, lease_until FROM {schema}idempotency_key \
    WHERE state = 'in_progress' AND lease_until <= clock_timestamp() ORDER BY lease_until LIMIT $1";
const RETENTION: &str = "SELECT extract(epoch FROM retention)::bigint FROM {schema}idempotency_ring";
const RETAIN: &str = "SELECT {schema}idempotency_retain($1)";
const ROTATE: &str = "SELECT {schema}idempotency_rotate()";

/// How a transaction came to hold a key.
#[derive(Debug, Clone, Copy)]
pub enum Held {
    /// Nothing was known of it.
    New {
        /// The slot that takes it.
        slot: usize,
        /// When this very transaction began: another one on the same connection began later.
        begun_at: OffsetDateTime,
    },
    /// By `idempotency_claim`, which left its mark in the transaction.
    Claimed,
}

impl KeyStore for Postgres {
    type KeyStatements = KeyStatements;
    type Held = Held;

    fn key_statements(schema: Option<&Identifier>) -> KeyStatements {
        let render = |text| Template::new(text).schema(schema).render();
        let insert = |slot| Template::new(INSERT).schema(schema).integer("slot", slot).render();
        KeyStatements {
            hold: render(HOLD),
            insert: [insert(0), insert(1), insert(2)],
            claim: render(CLAIM),
            finish: render(FINISH),
            change: render(CHANGE),
            decide: render(DECIDE),
            stuck: render(STUCK),
            retention: render(RETENTION),
            retain: render(RETAIN),
            rotate: render(ROTATE),
        }
    }

    async fn claim(pool: &PgPool, statements: &KeyStatements, ask: &Ask) -> Result<Found> {
        let mut connection = pool.acquire().await?;
        claim(&mut connection, statements, ask, Some(interval(ask.lease))).await
    }

    /// Whatever the role's default: a snapshot of the whole transaction would not show what another holder has just
    /// committed.
    async fn begin_holding(pool: &PgPool) -> Result<Transaction<'static, Self>> {
        pool.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await
    }

    async fn probe(connection: &mut PgConnection) -> Result<()> {
        sqlx::query("SELECT 1").execute(connection).await.map(drop)
    }

    /// A new key in one statement. Whatever is known already takes a second one, and all the cases of `idempotency_claim`,
    /// which takes the lock once more.
    async fn hold(
        connection: &mut PgConnection,
        statements: &KeyStatements,
        ask: &Ask,
    ) -> Result<(Found, Held)> {
        let row = sqlx::query(&statements.hold)
            .bind(ask.id.scope().as_str())
            .bind(ask.id.operation().as_str())
            .bind(ask.id.key().as_str())
            .bind(ask.lease.as_millis().to_string())
            .fetch_one(&mut *connection)
            .await?;
        let Some(slot) = row.try_get::<Option<i16>, _>("slot")? else {
            return Ok((claim(connection, statements, ask, None).await?, Held::Claimed));
        };
        let found = Found {
            is_busy: false,
            read_at: row.try_get("read_at")?,
            rotation_is_due: row.try_get("rotation_is_due")?,
            record: None,
        };
        let slot = usize::from(slot.unsigned_abs() % 3);
        Ok((found, Held::New { slot, begun_at: row.try_get("begun_at")? }))
    }

    async fn finish(
        connection: &mut PgConnection,
        statements: &KeyStatements,
        ask: &Ask,
        (attempt, held): (u32, &Held),
        (ending, outcome): (Ending, &[u8]),
    ) -> Result<bool> {
        let (scope, operation, key) =
            (ask.id.scope().as_str(), ask.id.operation().as_str(), ask.id.key().as_str());
        let fingerprint = &ask.asked.fingerprint.as_bytes()[..];
        let state = State::Ended(ending).as_str();
        match *held {
            Held::New { slot, begun_at } => {
                let inserted = sqlx::query(&statements.insert[slot])
                    .bind(scope)
                    .bind(operation)
                    .bind(key)
                    .bind(fingerprint)
                    .bind(state)
                    .bind(ask.asked.holder)
                    .bind(outcome)
                    .bind(interval(ask.retention))
                    .bind(begun_at)
                    .execute(connection)
                    .await?;
                Ok(inserted.rows_affected() == 1)
            }
            Held::Claimed => {
                sqlx::query_scalar(&statements.finish)
                    .bind(scope)
                    .bind(operation)
                    .bind(key)
                    .bind(fingerprint)
                    .bind(ask.asked.holder)
                    .bind(interval(ask.retention))
                    .bind(i32::try_from(attempt).unwrap_or(i32::MAX))
                    .bind(state)
                    .bind(outcome)
                    .fetch_one(connection)
                    .await
            }
        }
    }

    async fn change(
        pool: &PgPool,
        statements: &KeyStatements,
        id: &KeyId,
        holder: Uuid,
        change: Change<'_>,
    ) -> Result<Option<Record>> {
        let (state, outcome, lease) = match change {
            Change::End(ending, outcome) => (State::Ended(ending).as_str(), Some(outcome), None),
            Change::Release => (State::Released.as_str(), None, None),
            Change::Renew(lease) => ("in_progress", None, Some(interval(lease))),
        };
        let row = sqlx::query(&statements.change)
            .bind(id.scope().as_str())
            .bind(id.operation().as_str())
            .bind(id.key().as_str())
            .bind(holder)
            .bind(state)
            .bind(outcome)
            .bind(lease)
            .fetch_optional(pool)
            .await?;
        Ok(row.as_ref().map(record).transpose()?.flatten())
    }

    async fn decide(
        pool: &PgPool,
        statements: &KeyStatements,
        id: &KeyId,
        decision: Decision,
        operator: &str,
    ) -> Result<bool> {
        let state = match decision {
            Decision::Release => State::Released,
            Decision::Discard => State::Ended(Ending::Failed),
        };
        sqlx::query_scalar(&statements.decide)
            .bind(id.scope().as_str())
            .bind(id.operation().as_str())
            .bind(id.key().as_str())
            .bind(state.as_str())
            .bind(operator)
            .fetch_one(pool)
            .await
    }

    async fn stuck(
        connection: &mut PgConnection,
        statements: &KeyStatements,
        limit: u32,
    ) -> Result<Vec<StuckKey>> {
        let rows: Vec<(String, String, String, i32, OffsetDateTime, OffsetDateTime)> =
            sqlx::query_as(&statements.stuck).bind(i64::from(limit)).fetch_all(connection).await?;
        rows.into_iter()
            .map(|(scope, operation, key, attempt, claimed_at, lease_until)| {
                stuck_key((scope, operation, key), attempt.unsigned_abs(), (claimed_at, lease_until))
            })
            .collect()
    }

    async fn retention(connection: &mut PgConnection, statements: &KeyStatements) -> Result<Duration> {
        let seconds: i64 = sqlx::query_scalar(&statements.retention).fetch_one(connection).await?;
        Ok(Duration::from_secs(seconds.unsigned_abs()))
    }

    async fn retain(pool: &PgPool, statements: &KeyStatements, at_least: Duration) -> Result<()> {
        sqlx::query(&statements.retain).bind(interval(at_least)).execute(pool).await?;
        Ok(())
    }

    async fn rotate(pool: &PgPool, statements: &KeyStatements) -> Result<bool> {
        sqlx::query_scalar(&statements.rotate).fetch_one(pool).await
    }
}

async fn claim(
    connection: &mut PgConnection,
    statements: &KeyStatements,
    ask: &Ask,
    lease: Option<PgInterval>,
) -> Result<Found> {
    let row = sqlx::query(&statements.claim)
        .bind(ask.id.scope().as_str())
        .bind(ask.id.operation().as_str())
        .bind(ask.id.key().as_str())
        .bind(&ask.asked.fingerprint.as_bytes()[..])
        .bind(ask.asked.holder)
        .bind(interval(ask.retention))
        .bind(ask.asked.on_expired == OnExpired::TakeOver)
        .bind(lease)
        .bind(interval(ask.lease))
        .fetch_one(connection)
        .await?;
    Ok(Found {
        is_busy: row.try_get("is_busy")?,
        read_at: row.try_get("read_at")?,
        rotation_is_due: row.try_get("rotation_is_due")?,
        record: record(&row)?,
    })
}

fn interval(duration: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: i64::try_from(duration.as_micros()).unwrap_or(i64::MAX) }
}

/// The row, if there is one: a claim answers with empty columns where there is none.
fn record(row: &PgRow) -> Result<Option<Record>> {
    let Some(state) = row.try_get::<Option<String>, _>("state")? else { return Ok(None) };
    let fingerprint: [u8; 32] = row.try_get("fingerprint")?;
    Ok(Some(Record {
        fingerprint: Fingerprint::from(fingerprint),
        state: State::of_columns(&state, row.try_get("lease_until")?)?,
        attempt: row.try_get::<i32, _>("attempt")?.unsigned_abs(),
        holder: row.try_get("holder")?,
        outcome: row.try_get("outcome")?,
        processed_at: row.try_get("processed_at")?,
        expires_at: row.try_get("expires_at")?,
    }))
}
