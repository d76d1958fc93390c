//! The differences between the databases for keys. These functions read and write.
//! [`decide`](super::decide::decide) decides what follows. Every call that takes a pool is run to
//! its end.

use std::future::Future;
use std::time::Duration;

use migrations::{Backend, Identifier};
use sqlx::{Pool, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;

use super::admin::{Decided, Decision, StuckKey};
use super::decide::Asked;
use super::id::KeyId;
use super::options::OnExpired;
use super::record::{Ending, Found, Record};
use crate::decision::Signature;

type Result<T> = std::result::Result<T, sqlx::Error>;

/// A claim, as the database needs it.
#[derive(Debug, Clone)]
pub struct Ask {
    pub(crate) id: KeyId,
    pub(crate) asked: Asked,
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
}

/// A change that a holder makes to its key.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// The request ended.
    End(Ending, &'a [u8]),
    /// It may be run by anybody.
    Release,
    /// The lease is to last so long from now.
    Renew(Duration),
    /// The lease is over now.
    Lapse,
}

/// A database that keys can be kept in: PostgreSQL or SQLite. Sealed.
pub trait KeyStore: Backend {
    /// The rendered SQL.
    type KeyStatements: Send + Sync + 'static;

    /// Renders the SQL.
    fn key_statements(schema: Option<&Identifier>) -> Self::KeyStatements;

    /// Begins a transaction that tries to lock a key until it ends, with a savepoint behind the
    /// lock. Every later statement sees what an earlier owner of the lock has committed.
    fn begin_holding(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
        ask: &Ask,
    ) -> impl Future<Output = Result<Transaction<'static, Self>>> + Send;

    /// Begins a transaction of the same kind that holds no key, with the mark of
    /// [`own_transaction`](migrations::own_transaction).
    fn begin_plain(pool: &Pool<Self>) -> impl Future<Output = Result<Transaction<'static, Self>>> + Send;

    /// Claims a key that has no row, if the transaction has its lock. When it was claimed.
    fn insert_key(
        connection: &mut Self::Connection,
        statements: &Self::KeyStatements,
        ask: &Ask,
        is_lease: bool,
    ) -> impl Future<Output = Result<Option<OffsetDateTime>>> + Send;

    /// Reads a key.
    fn look(
        connection: &mut Self::Connection,
        statements: &Self::KeyStatements,
        ask: &Ask,
    ) -> impl Future<Output = Result<Found>> + Send;

    /// Takes a key over as that attempt, if its row is still the one that was looked at; whether it
    /// was.
    fn replace(
        connection: &mut Self::Connection,
        statements: &Self::KeyStatements,
        ask: &Ask,
        is_lease: bool,
        known: (u32, &Record),
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Rolls back what was written since the transaction has the lock. Works in a transaction that
    /// has failed.
    fn undo(connection: &mut Self::Connection) -> impl Future<Output = Result<()>> + Send;

    /// Stores the outcome of a key that this very transaction holds as that attempt; whether it
    /// holds it still.
    fn finish(
        connection: &mut Self::Connection,
        statements: &Self::KeyStatements,
        ask: &Ask,
        attempt: u32,
        end: (Ending, &[u8]),
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Changes a key on lease if the holder still has it. The row as it stands afterwards, whoever
    /// has it.
    fn change(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
        id: &KeyId,
        holder: Uuid,
        change: Change<'_>,
    ) -> impl Future<Output = Result<Option<Record>>> + Send;

    /// Decides about a key whose lease has expired, where a holder is named one that it was the
    /// last to hold, and notes the decision; whether there was one.
    fn decide(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
        key: (&KeyId, Option<Uuid>),
        decision: Decision,
        signature: &Signature,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// The decisions, the latest first.
    fn decisions(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Decided>>> + Send;

    /// The keys whose lease has expired, the longest first.
    fn stuck(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<StuckKey>>> + Send;

    /// Those of them that nobody has reported, at most so many; they are reported from now on.
    fn report(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<StuckKey>>> + Send;

    /// Deletes keys that have expired by the database's clock, and before `until`, at most `limit`;
    /// how many.
    fn forget(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
        until: OffsetDateTime,
        limit: u32,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Deletes decisions from before a moment, of the oldest `limit` ones; how many.
    fn forget_decisions(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
        before: OffsetDateTime,
        limit: u32,
    ) -> impl Future<Output = Result<u64>> + Send;
}

/// The stuck key of a row.
pub(crate) fn stuck_key(
    (scope, operation, key): (String, String, String),
    (attempt, holder): (u32, Uuid),
    (claimed_at, lease_until): (OffsetDateTime, OffsetDateTime),
    refuses: bool,
) -> Result<StuckKey> {
    let id = KeyId::of_texts(&scope, &operation, &key).map_err(|error| sqlx::Error::Decode(error.into()))?;
    let on_expired = if refuses { OnExpired::Refuse } else { OnExpired::TakeOver };
    Ok(StuckKey { id, attempt, holder, claimed_at, lease_until, on_expired })
}

/// A row of the audit without its time: actor, note, action, scope, operation, key.
pub(crate) type DecidedRow = (String, String, String, String, String, String);

/// The decision of a row.
pub(crate) fn decided(
    at: OffsetDateTime,
    (actor, note, action, scope, operation, key): DecidedRow,
) -> Result<Decided> {
    let id = KeyId::of_texts(&scope, &operation, &key).map_err(|error| sqlx::Error::Decode(error.into()))?;
    let unknown = || sqlx::Error::Decode(format!("{action:?} is no decision that this version knows").into());
    let decision = Decision::from_word(&action).ok_or_else(unknown)?;
    Ok(Decided { at, actor, note, decision, id })
}
