//! Idempotency keys on PostgreSQL: plain statements on one table with a primary key (ADR 23).

use std::time::Duration;

use message::Fingerprint;
use migrations::own_transaction::MARK;
use migrations::{Identifier, Template};
use sqlx::postgres::PgRow;
use sqlx::postgres::types::PgInterval;
use sqlx::{AssertSqlSafe, FromRow, PgConnection, PgPool, Postgres, Row, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::decision::Signature;
use crate::keys::record::{Found, Record, State};
use crate::keys::store::{Ask, Change, KeyStore, decided, stuck_key};
use crate::keys::{Decided, Decision, Ending, KeyId, OnExpired, StuckKey};

type Result<T> = std::result::Result<T, sqlx::Error>;
type Query<'q> = sqlx::query::Query<'q, Postgres, sqlx::postgres::PgArguments>;

/// The rendered SQL, and a number that separates the locks of one schema's keys from those of
/// another schema.
#[derive(Debug)]
pub struct KeyStatements {
    place: i64,
    sql: Statements,
}

/// Begins a transaction that tries to lock one key, in one message. Later statements read what
/// every earlier owner of the lock has committed.
///
/// BEGIN comes last. A statement that fails before it ends the message's own transaction, so no
/// failed transaction returns to the pool with its connection. Earlier statements that succeeded
/// belong to the new transaction (PostgreSQL, "Multiple Statements in a Simple Query"). The
/// savepoint comes after the lock, so rolling back to it keeps the key. The server ends a
/// transaction whose service hangs. The only values are our own numbers.
const BEGIN: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; \
    SELECT set_config('idle_in_transaction_session_timeout', '{idle_ms}', true), set_config('idempotency.holder', \
        CASE WHEN pg_try_advisory_xact_lock('{lock}'::bigint # hashtextextended(coalesce(current_schema(), ''), 0)) \
            THEN {holder} ELSE '' END, true); \
    BEGIN; SAVEPOINT idempotency_claim";
/// Begins the transaction that looks for stuck keys. It forces both of their indexes, whatever the
/// planner assumes about the table.
const BY_INDEXES: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL enable_seqscan = off";
const UNDO: &str = "ROLLBACK TO SAVEPOINT idempotency_claim";

migrations::statements! {
    parts {
        // The columns of a record. A key in progress has no lease only if a handler committed by
        // itself.
        record_columns = "k.fingerprint, k.state, k.attempt, k.holder,
            CASE WHEN k.state = 'in_progress' THEN coalesce(k.lease_until, k.claimed_at) END AS lease_until,
            k.outcome, k.processed_at, k.expires_at, k.refuses";
        stuck_columns = "k.scope, k.operation, k.key, k.attempt, k.holder, k.claimed_at,
            coalesce(k.lease_until, k.claimed_at) AS lease_until, k.refuses";
        // Keys in progress whose lease has expired, found by the index on it. A key without a lease
        // is found after its retention, by the index on that: finding it earlier would need a scan
        // of every row.
        has_lapsed = "k.lease_until <= statement_timestamp()
            OR (k.lease_until IS NULL AND k.expires_at <= statement_timestamp())";
        // A lease that ends further ahead than the longest one, LEASE_MAX: the server's clock was
        // ahead when it was given. A live holder's next renewal corrects it.
        is_too_long = "k.lease_until > statement_timestamp() + interval '24 hours'";
    }

    /// Claims a key that has no row. The primary key decides, by its index and not by a snapshot,
    /// so the plan does not matter.
    insert = "
        INSERT INTO {schema}idempotency_key (scope, operation, key, fingerprint, holder, state, attempt,
            lease_until, claimed_at, expires_at, refuses)
        SELECT $1, $2, $3, $4, $5, 'in_progress', 1, statement_timestamp() + $6, statement_timestamp(),
            statement_timestamp() + $7, $8
            WHERE current_setting('idempotency.holder', true) = $5::text ON CONFLICT DO NOTHING
            RETURNING claimed_at";
    look = "
        SELECT current_setting('idempotency.holder', true) = $4::text AS is_held, clock_timestamp() AS
            read_at, {record_columns}
        FROM (SELECT) AS one LEFT JOIN {schema}idempotency_key AS k ON k.scope = $1 AND k.operation = $2
            AND k.key = $3";
    find = "
        SELECT {record_columns} FROM {schema}idempotency_key AS k WHERE k.scope = $1 AND k.operation = $2
            AND k.key = $3";
    /// Takes over a key whose row is unchanged since it was read, or is gone.
    replace = "
        INSERT INTO {schema}idempotency_key AS k (scope, operation, key, fingerprint, holder, state,
            attempt, lease_until, claimed_at, expires_at, refuses)
        SELECT $1, $2, $3, $4, $5, 'in_progress', $9, statement_timestamp() + $6, statement_timestamp(),
            statement_timestamp() + $7, $8
        WHERE current_setting('idempotency.holder', true) = $5::text ON CONFLICT (scope, operation, key)
            DO UPDATE
        SET fingerprint = EXCLUDED.fingerprint, holder = EXCLUDED.holder, state = EXCLUDED.state, attempt
            = EXCLUDED.attempt, lease_until = EXCLUDED.lease_until, outcome = NULL, claimed_at =
            EXCLUDED.claimed_at, processed_at = NULL, expires_at = greatest(k.expires_at,
            EXCLUDED.expires_at), refuses = EXCLUDED.refuses, reported_at = NULL
            WHERE k.holder = $10 AND k.state = $11 AND CASE
            WHEN k.state = 'in_progress' THEN coalesce(k.lease_until, k.claimed_at) END IS NOT DISTINCT
            FROM $12";
    /// Stores the outcome in the transaction that holds the key. It uses the holder's own row. If
    /// that was rolled back with the effects, it inserts a new row or updates the row that it had
    /// taken over. `expires_at` of the holder's own row stays, so no index changes.
    finish = "
        INSERT INTO {schema}idempotency_key AS k (scope, operation, key, fingerprint, holder, state,
            attempt, outcome, claimed_at, processed_at, expires_at, refuses)
            SELECT $1, $2, $3, $4, $5, $6, $7, $8, statement_timestamp(), statement_timestamp(),
            statement_timestamp() + $9, $10
        WHERE current_setting('idempotency.holder', true) = $5::text ON CONFLICT (scope, operation, key)
            DO UPDATE
        SET fingerprint = EXCLUDED.fingerprint, holder = EXCLUDED.holder, state = EXCLUDED.state, attempt
            = EXCLUDED.attempt, lease_until = NULL, outcome = EXCLUDED.outcome, claimed_at =
        EXCLUDED.claimed_at, processed_at = EXCLUDED.processed_at, refuses = EXCLUDED.refuses, reported_at
            = NULL, expires_at = CASE
        WHEN k.holder = EXCLUDED.holder THEN k.expires_at ELSE greatest(k.expires_at, EXCLUDED.expires_at)
            END WHERE (k.holder = EXCLUDED.holder
            AND k.state = 'in_progress') OR (k.attempt = EXCLUDED.attempt - 1
            AND (k.state IN ('in_progress', 'released') OR k.expires_at <= statement_timestamp()))";
    change = "
        UPDATE {schema}idempotency_key AS k
            SET state = $5, outcome = $6, reported_at = NULL, expires_at = greatest(k.expires_at,
            statement_timestamp() + (k.expires_at - k.claimed_at)), claimed_at = statement_timestamp(),
            lease_until = CASE
            WHEN $5 = 'in_progress' THEN statement_timestamp() + $7
            END, processed_at = CASE WHEN $5 IN ('succeeded', 'failed') THEN statement_timestamp() END
            WHERE k.scope = $1 AND k.operation = $2 AND k.key = $3 AND k.holder = $4
            AND k.state = 'in_progress' RETURNING {record_columns}";
    lapse = "
        UPDATE {schema}idempotency_key AS k SET lease_until = least(k.lease_until, statement_timestamp())
            WHERE k.scope = $1 AND k.operation = $2 AND k.key = $3 AND k.holder = $4
            AND k.state = 'in_progress' RETURNING {record_columns}";
    decide = "
        WITH decided AS (UPDATE {schema}idempotency_key AS k
            SET state = $4, lease_until = NULL, decided_by = $5, processed_at = CASE
            WHEN $4 = 'failed' THEN statement_timestamp()
        END, expires_at = greatest(k.expires_at, statement_timestamp() + (k.expires_at - k.claimed_at)),
            claimed_at = statement_timestamp()
            WHERE k.scope = $1 AND k.operation = $2 AND k.key = $3 AND k.state = 'in_progress'
            AND (coalesce(k.lease_until, k.claimed_at) <= statement_timestamp() OR {is_too_long})
            AND ($8::uuid IS NULL OR k.holder = $8)
            RETURNING k.scope, k.operation, k.key)
        INSERT INTO {schema}idempotency_audit (actor, note, action, scope, operation, key)
            SELECT $5, $6, $7, scope, operation, key FROM decided";
    decisions = "
        SELECT actor, note, action, scope, operation, key, at FROM {schema}idempotency_audit ORDER BY seq DESC LIMIT $1";
    stuck = "
        SELECT {stuck_columns} FROM {schema}idempotency_key AS k
            WHERE k.state = 'in_progress' AND ({has_lapsed} OR {is_too_long})
            ORDER BY coalesce(k.lease_until, k.claimed_at) LIMIT $1";
    report = "
        UPDATE {schema}idempotency_key AS k SET reported_at = statement_timestamp()
            WHERE k.ctid = ANY (ARRAY(SELECT k.ctid FROM {schema}idempotency_key AS k
            WHERE k.state = 'in_progress' AND ({has_lapsed}) AND k.reported_at IS NULL ORDER BY coalesce(k.lease_until, k.claimed_at)
            LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING {stuck_columns}";
    /// Calls the database's own function, which runs with the owner's rights.
    forget_decisions = "SELECT {schema}idempotency_purge_audit($1, $2)";
    /// Deletes keys in progress only if the next request may take them over anyway.
    forget = "
        DELETE FROM {schema}idempotency_key AS k WHERE k.ctid = ANY (ARRAY(SELECT f.ctid
            FROM {schema}idempotency_key AS f WHERE f.expires_at <= least(statement_timestamp(), $2)
            AND (f.state <> 'in_progress'
                OR (NOT f.refuses AND coalesce(f.lease_until, f.claimed_at) <= statement_timestamp()))
            ORDER BY f.expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))";
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
        (attempt, known): (u32, &Record),
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
        (ending, outcome): (Ending, &[u8]),
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
            Change::End(ending, outcome) => to(State::Ended(ending).as_str(), Some(outcome), None),
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
        (id, holder): (&KeyId, Option<Uuid>),
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
        rows.iter().map(|row| decided(row.try_get("at")?, FromRow::from_row(row)?)).collect()
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
    rows.iter()
        .map(|row| {
            let name = (row.try_get("scope")?, row.try_get("operation")?, row.try_get("key")?);
            let attempt = row.try_get::<i32, _>("attempt")?.unsigned_abs();
            let times = (row.try_get("claimed_at")?, row.try_get("lease_until")?);
            stuck_key(name, (attempt, row.try_get("holder")?), times, row.try_get("refuses")?)
        })
        .collect()
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
