//! The operations of idempotency keys on SQLite.

use inbox::Signature;
use inbox::day::ahead;
use message::Fingerprint;
use migrations::query::{at_micros, micros, micros_of};
use migrations::{Backend as _, Identifier};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, Sqlite, SqliteConnection, SqlitePool, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;

use super::statements::{
    CHANGE, DECISIONS, FIND, FINISH, FORGET, FORGET_DECISIONS, HOLD, INSERT, NOTE, NOW, REPLACE, REPORT,
    STUCK, UNDO,
};
use crate::record::{Found, Record, State};
use crate::rows::{decided, key_id};
use crate::store::{Ask, Change, End, KeyStore, TakeOver};
use crate::{Decided, Decision, Ending, KeyId, LEASE_MAX, OnExpired, StuckKey};

type Result<T> = std::result::Result<T, sqlx::Error>;
type Query<'q> = sqlx::query::Query<'q, Sqlite, <Sqlite as sqlx::Database>::Arguments>;

impl KeyStore for Sqlite {
    type KeyStatements = ();

    fn key_statements(_schema: Option<&Identifier>) {}

    async fn begin_holding(
        pool: &SqlitePool,
        _statements: &(),
        _ask: &Ask,
    ) -> Result<Transaction<'static, Self>> {
        let mut tx = Self::begin_plain(pool).await?;
        sqlx::raw_sql(HOLD).execute(&mut *tx).await?;
        Ok(tx)
    }

    async fn begin_plain(pool: &SqlitePool) -> Result<Transaction<'static, Self>> {
        Self::begin_marked(pool).await
    }

    async fn insert_key(
        connection: &mut SqliteConnection,
        _statements: &(),
        ask: &Ask,
        _is_lease: bool,
    ) -> Result<Option<OffsetDateTime>> {
        let now = now(connection).await?;
        let inserted = bind_claim(sqlx::query(INSERT), ask, now).execute(connection).await?;
        (inserted.rows_affected() == 1).then(|| at_micros(now)).transpose()
    }

    async fn look(connection: &mut SqliteConnection, _statements: &(), ask: &Ask) -> Result<Found> {
        let read_at = at_micros(now(connection).await?)?;
        Ok(Found { is_held: true, read_at, record: find(connection, &ask.id).await? })
    }

    async fn replace(
        connection: &mut SqliteConnection,
        _statements: &(),
        ask: &Ask,
        _is_lease: bool,
        take_over: TakeOver<'_>,
    ) -> Result<bool> {
        let now = now(connection).await?;
        bind_claim(sqlx::query(REPLACE), ask, now).bind(take_over.attempt).execute(connection).await?;
        Ok(true)
    }

    async fn undo(connection: &mut SqliteConnection) -> Result<()> {
        sqlx::raw_sql(UNDO).execute(connection).await.map(drop)
    }

    /// Uses the savepoint, which exists only in the transaction that claimed the key.
    async fn finish(
        connection: &mut SqliteConnection,
        _statements: &(),
        ask: &Ask,
        attempt: u32,
        End { ending, outcome }: End<'_>,
    ) -> Result<bool> {
        if sqlx::raw_sql("RELEASE SAVEPOINT idempotency_claim").execute(&mut *connection).await.is_err() {
            return Ok(false);
        }
        let now = now(connection).await?;
        bind_id(sqlx::query(FINISH), &ask.id)
            .bind(&ask.asked.fingerprint.as_bytes()[..])
            .bind(ask.asked.holder.hyphenated())
            .bind(State::Ended(ending).as_str())
            .bind(attempt)
            .bind(outcome)
            .bind(now)
            .bind(now.saturating_add(micros(ask.retention)))
            .bind(ask.asked.on_expired == OnExpired::Refuse)
            .execute(connection)
            .await?;
        Ok(true)
    }

    async fn change(
        pool: &SqlitePool,
        _statements: &(),
        id: &KeyId,
        holder: Uuid,
        change: Change<'_>,
    ) -> Result<Option<Record>> {
        let mut tx = Self::begin_plain(pool).await?;
        let now = now(&mut tx).await?;
        let Some(record) = find(&mut tx, id).await? else { return Ok(None) };
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
        write(&mut tx, id, written, now).await?;
        let changed = find(&mut tx, id).await?;
        tx.commit().await?;
        Ok(changed)
    }

    async fn decide(
        pool: &SqlitePool,
        _statements: &(),
        id: &KeyId,
        holder: Option<Uuid>,
        decision: Decision,
        Signature { actor, note, .. }: &Signature,
    ) -> Result<bool> {
        let mut tx = Self::begin_plain(pool).await?;
        let now = now(&mut tx).await?;
        let Some(record) = find(&mut tx, id).await? else { return Ok(false) };
        let State::InProgress { lease_until } = record.state else { return Ok(false) };
        let now_at = at_micros(now)?;
        let is_leased = lease_until > now_at && lease_until <= ahead(now_at, LEASE_MAX);
        if is_leased || holder.is_some_and(|holder| holder != record.holder) {
            return Ok(false);
        }
        let state = match decision {
            Decision::Release => State::Released,
            Decision::Discard => State::Ended(Ending::Failed),
        };
        write(&mut tx, id, Written { operator: Some(actor), ..state.into() }, now).await?;
        let audit = bind_id(sqlx::query(NOTE), id).bind(actor).bind(note).bind(decision.as_str());
        audit.execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(true)
    }

    async fn decisions(pool: &SqlitePool, _statements: &(), limit: u32) -> Result<Vec<Decided>> {
        let rows = sqlx::query(DECISIONS).bind(limit).fetch_all(pool).await?;
        rows.iter().map(|row| decided(row, at_micros(row.try_get("at")?)?)).collect()
    }

    async fn stuck(pool: &SqlitePool, _statements: &(), limit: u32) -> Result<Vec<StuckKey>> {
        stuck_keys(sqlx::query(STUCK).bind(limit).bind(micros(LEASE_MAX)), pool).await
    }

    async fn report(pool: &SqlitePool, _statements: &(), limit: u32) -> Result<Vec<StuckKey>> {
        stuck_keys(sqlx::query(REPORT).bind(limit), pool).await
    }

    async fn forget(pool: &SqlitePool, _statements: &(), until: OffsetDateTime, limit: u32) -> Result<u64> {
        Ok(sqlx::query(FORGET).bind(limit).bind(micros_of(until)).execute(pool).await?.rows_affected())
    }

    async fn forget_decisions(
        pool: &SqlitePool,
        _statements: &(),
        before: OffsetDateTime,
        limit: u32,
    ) -> Result<u64> {
        let forget = sqlx::query(FORGET_DECISIONS).bind(micros_of(before)).bind(limit);
        Ok(forget.execute(pool).await?.rows_affected())
    }
}

async fn now(connection: &mut SqliteConnection) -> Result<i64> {
    sqlx::query_scalar(NOW).fetch_one(connection).await
}

async fn find(connection: &mut SqliteConnection, id: &KeyId) -> Result<Option<Record>> {
    let row = bind_id(sqlx::query(FIND), id).fetch_optional(connection).await?;
    row.as_ref().map(record).transpose()
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
    id: &KeyId,
    Written { state, outcome, operator }: Written<'_>,
    now: i64,
) -> Result<()> {
    bind_id(sqlx::query(CHANGE), id)
        .bind(state.as_str())
        .bind(state.lease_until().map(micros_of))
        .bind(outcome)
        .bind(now)
        .bind(matches!(state, State::Ended(_)).then_some(now))
        .bind(operator)
        .execute(connection)
        .await
        .map(drop)
}

fn bind_id<'q>(query: Query<'q>, id: &'q KeyId) -> Query<'q> {
    query.bind(id.scope().as_str()).bind(id.operation().as_str()).bind(id.key().as_str())
}

fn bind_claim<'q>(query: Query<'q>, ask: &'q Ask, now: i64) -> Query<'q> {
    bind_id(query, &ask.id)
        .bind(&ask.asked.fingerprint.as_bytes()[..])
        .bind(ask.asked.holder.hyphenated())
        .bind(now.saturating_add(micros(ask.lease)))
        .bind(now)
        .bind(now.saturating_add(micros(ask.retention)))
        .bind(ask.asked.on_expired == OnExpired::Refuse)
}

async fn stuck_keys(query: Query<'_>, pool: &SqlitePool) -> Result<Vec<StuckKey>> {
    let rows = query.fetch_all(pool).await?;
    rows.iter().map(stuck_key).collect()
}

fn stuck_key(row: &SqliteRow) -> Result<StuckKey> {
    Ok(StuckKey {
        id: key_id(row)?,
        attempt: row.try_get("attempt")?,
        holder: holder(row)?,
        claimed_at: at_micros(row.try_get("claimed_at")?)?,
        lease_until: at_micros(row.try_get("lease_until")?)?,
        on_expired: OnExpired::of_column(row.try_get("refuses")?),
    })
}

fn holder(row: &SqliteRow) -> Result<Uuid> {
    Ok(row.try_get::<uuid::fmt::Hyphenated, _>("holder")?.into_uuid())
}

fn record(row: &SqliteRow) -> Result<Record> {
    let time = |column| row.try_get::<Option<i64>, _>(column)?.map(at_micros).transpose();
    let state: String = row.try_get("state")?;
    let fingerprint = Fingerprint::try_from(row.try_get::<&[u8], _>("fingerprint")?);
    Ok(Record {
        fingerprint: fingerprint.map_err(|error| sqlx::Error::Decode(error.into()))?,
        state: State::of_columns(&state, time("lease_until")?)?,
        attempt: row.try_get("attempt")?,
        holder: holder(row)?,
        outcome: row.try_get("outcome")?,
        processed_at: time("processed_at")?,
        expires_at: time("expires_at")?.unwrap_or(OffsetDateTime::UNIX_EPOCH),
        refuses: row.try_get("refuses")?,
    })
}
