//! The tables of idempotency keys in a database. Each method runs one statement and decides
//! nothing. All databases share this code; [`KeyStore`] has the operations in which they differ.
//! Run every call that takes a pool to its end.

use message::Tenant;
use migrations::Statement;
use migrations::query::Query;
use outbox::Bounded;
use sqlx::Pool;
use time::OffsetDateTime;

use crate::id::KeyId;
use crate::options::OnExpired;
use crate::record::{Decision, Found, KEYS_LOOKED_AT_MAX, KeysOfName, NamedSlice, Record, State, StuckKey};
use crate::rows;
use crate::store::{Ask, End, KeyStore, KeyTables, TakeOver};

type Result<T> = std::result::Result<T, sqlx::Error>;

impl<DB: KeyStore> KeyTables<DB> {
    /// Claims a key that has no row, if the transaction holds its lock. Returns when it was
    /// claimed.
    pub(crate) async fn insert(
        &self,
        connection: &mut DB::Connection,
        ask: &Ask,
        is_lease: bool,
    ) -> Result<Option<OffsetDateTime>> {
        let claimed = of_claim::<DB>(&self.shared.insert, ask, is_lease).first(connection).await?;
        claimed.map(|row| row.get("claimed_at")).transpose()
    }

    /// Reads a key and whether the transaction holds its lock.
    pub(crate) async fn look(&self, connection: &mut DB::Connection, ask: &Ask) -> Result<Found> {
        let look = of_key::<DB>(&self.shared.look, &ask.id).bind(ask.asked.holder);
        rows::found(&of_existing(look).one(connection).await?)
    }

    /// Reads the row of a key.
    pub(crate) async fn find(&self, connection: &mut DB::Connection, id: &KeyId) -> Result<Option<Record>> {
        let found = of_existing(of_key::<DB>(&self.shared.find, id)).first(connection).await?;
        found.as_ref().map(rows::record).transpose()
    }

    /// Takes over a key, if its row is still the one that was read. Returns whether it was.
    pub(crate) async fn replace(
        &self,
        connection: &mut DB::Connection,
        ask: &Ask,
        is_lease: bool,
        TakeOver { attempt, known }: TakeOver<'_>,
    ) -> Result<bool> {
        of_claim::<DB>(&self.shared.replace, ask, is_lease)
            .bind(stored(attempt))
            .bind(known.holder)
            .bind(known.state.as_str())
            .bind(known.state.lease_until())
            .changes_one(connection)
            .await
    }

    /// Stores the outcome of a key that this very transaction holds as that attempt. Returns
    /// whether it still holds it.
    pub(crate) async fn finish(
        &self,
        connection: &mut DB::Connection,
        ask: &Ask,
        attempt: u32,
        End { ending, outcome }: End<'_>,
    ) -> Result<bool> {
        if !DB::may_finish(connection).await? {
            return Ok(false);
        }
        of_key::<DB>(&self.shared.finish, &ask.id)
            .bind(&ask.asked.fingerprint.as_bytes()[..])
            .bind(ask.asked.holder)
            .bind(State::Ended(ending).as_str())
            .bind(stored(attempt))
            .bind(outcome)
            .bind(ask.retention)
            .bind(ask.asked.on_expired == OnExpired::Refuse)
            .changes_one(connection)
            .await
    }

    /// Returns the decisions with numbers below `before`, the latest first.
    pub(crate) async fn decisions(&self, pool: &Pool<DB>, before: i64, limit: u32) -> Result<Vec<Decision>> {
        let found = self.audit.before::<DB>(&mut *pool.acquire().await?, before, limit).await?;
        found.iter().map(rows::decided).collect()
    }

    /// Deletes the oldest decisions from before a time, at most `limit`; returns how many.
    pub(crate) async fn forget_decisions(
        &self,
        pool: &Pool<DB>,
        before: OffsetDateTime,
        limit: u32,
    ) -> Result<u64> {
        self.audit.purge::<DB>(&mut *pool.acquire().await?, before, limit).await
    }

    /// Returns the keys whose lease has expired, the oldest expiry first, and those whose lease
    /// ends further ahead than [`LEASE_MAX`](crate::options::LEASE_MAX).
    pub(crate) async fn stuck(&self, db: &Bounded<DB>, limit: u32) -> Result<Vec<StuckKey>> {
        stuck_keys(db, &self.shared.stuck, limit).await
    }

    /// Returns those of the expired ones that were not reported yet, at most `limit`, and marks
    /// them as reported.
    pub(crate) async fn report(&self, db: &Bounded<DB>, limit: u32) -> Result<Vec<StuckKey>> {
        stuck_keys(db, &self.shared.report, limit).await
    }

    /// Reads the next keys with a name.
    pub(crate) async fn named(
        &self,
        pool: &Pool<DB>,
        of: &KeysOfName,
        after: Option<&KeyId>,
    ) -> Result<NamedSlice> {
        let query = Query::<DB>::new(&self.shared.named)
            .bind(after.map_or("", |id| id.tenant().as_str()))
            .bind(after.map_or("", |id| id.operation().as_str()))
            .bind(after.map_or("", |id| id.key().as_str()))
            .bind(&of.name)
            .bind(of.tenant.as_ref().map(Tenant::as_str))
            .bind(KEYS_LOOKED_AT_MAX);
        let found = of_existing(query).rows(&mut *pool.acquire().await?).await?;
        rows::named(&found)
    }

    /// Removes the answer of a key that has ended. Returns whether it had ended.
    pub(crate) async fn erase(&self, pool: &Pool<DB>, id: &KeyId, actor: &str) -> Result<bool> {
        let erase = of_existing(of_key::<DB>(&self.shared.erase, id).bind(actor));
        erase.changes_one(&mut *pool.acquire().await?).await
    }

    /// Deletes keys that have expired by the database's clock and before `until`, at most `limit`.
    /// Returns the number deleted.
    pub(crate) async fn forget(&self, pool: &Pool<DB>, until: OffsetDateTime, limit: u32) -> Result<u64> {
        let forget = of_existing(Query::<DB>::new(&self.shared.forget).bind(limit).bind(until));
        forget.run(&mut *pool.acquire().await?).await
    }
}

async fn stuck_keys<DB: KeyStore>(
    db: &Bounded<DB>,
    statement: &Statement,
    limit: u32,
) -> Result<Vec<StuckKey>> {
    let query = of_existing(Query::<DB>::new(statement).bind(limit));
    DB::rows_of_stuck(db, query).await?.iter().map(rows::stuck_key).collect()
}

/// Prepares a statement that searches for rows: see [`KEEPS_PLANS`](KeyStore::KEEPS_PLANS).
pub(crate) fn of_existing<DB: KeyStore>(query: Query<DB>) -> Query<DB> {
    query.persistent(DB::KEEPS_PLANS)
}

/// Begins a statement about one key.
pub(crate) fn of_key<DB: KeyStore>(statement: &Statement, id: &KeyId) -> Query<DB> {
    let query = Query::new(statement).bind(id.tenant().as_str()).bind(id.operation().as_str());
    query.bind(id.key().as_str())
}

/// Begins a statement that makes a request the holder of its key.
fn of_claim<DB: KeyStore>(statement: &Statement, ask: &Ask, is_lease: bool) -> Query<DB> {
    of_key(statement, &ask.id)
        .bind(&ask.asked.fingerprint.as_bytes()[..])
        .bind(ask.asked.holder)
        .bind((is_lease || DB::LEASES_ALWAYS).then_some(ask.lease))
        .bind(ask.retention)
        .bind(ask.asked.on_expired == OnExpired::Refuse)
}

/// Returns a number as a database stores it, in 32 bits.
fn stored(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
