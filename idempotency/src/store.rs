//! Differences between the databases for keys. These functions read and write;
//! [`decide`](crate::decide::decide) decides what follows. Run every call that takes a pool to its
//! end.

use std::future::Future;
use std::time::Duration;

use inbox::Signature;
use message::token::Drift;
use migrations::Identifier;
use sqlx::{Pool, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::admin::{Decided, Decision, StuckKey};
use crate::decide::Asked;
use crate::id::KeyId;
use crate::record::{Ending, Found, Record};
use crate::token::Dated;

type Result<T> = std::result::Result<T, sqlx::Error>;

/// A claim, in the form that the database needs.
#[derive(Debug, Clone)]
pub struct Ask {
    pub(crate) id: KeyId,
    pub(crate) asked: Asked,
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
    /// The time of the key; `None` when the operation accepts any key.
    pub(crate) dated: Option<Dated>,
}

impl Ask {
    /// Validates the time of the key at this time of the database, for a request without a record.
    pub(crate) fn validate_time(&self, now: OffsetDateTime) -> std::result::Result<(), Drift> {
        self.dated.map_or(Ok(()), |dated| dated.validate(now))
    }
}

/// The end of a request, with its outcome.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    pub(crate) ending: Ending,
    pub(crate) outcome: &'a [u8],
}

/// A key to take over.
#[derive(Debug, Clone, Copy)]
pub struct TakeOver<'a> {
    /// The number of the new attempt.
    pub(crate) attempt: u32,
    /// The row that was read.
    #[cfg_attr(
        not(feature = "postgres"),
        expect(dead_code, reason = "SQLite has one writer, so the record has not changed")
    )]
    pub(crate) known: &'a Record,
}

/// A change by the holder of a key.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// The request ended.
    End(End<'a>),
    /// Any caller may run it.
    Release,
    /// The lease is extended to this duration from now.
    Renew(Duration),
    /// The lease expires now.
    Lapse,
}

/// A database that can store keys: PostgreSQL or SQLite. Sealed.
pub trait KeyStore: outbox::Dialect {
    /// The rendered SQL.
    type KeyStatements: Send + Sync + 'static;

    /// Renders the SQL.
    fn key_statements(schema: Option<&Identifier>) -> Self::KeyStatements;

    /// Begins a transaction that tries to lock a key until it ends, with a savepoint after the
    /// lock. Every later statement sees what an earlier owner of the lock has committed.
    fn begin_holding(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
        ask: &Ask,
    ) -> impl Future<Output = Result<Transaction<'static, Self>>> + Send;

    /// Begins a transaction of the same kind without a key, with the mark of
    /// [`own_transaction`](migrations::own_transaction).
    fn begin_plain(pool: &Pool<Self>) -> impl Future<Output = Result<Transaction<'static, Self>>> + Send;

    /// Claims a key that has no row, if the transaction holds its lock. Returns when it was
    /// claimed.
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

    /// Takes over a key, if its row is still the one that was read. Returns whether it was.
    fn replace(
        connection: &mut Self::Connection,
        statements: &Self::KeyStatements,
        ask: &Ask,
        is_lease: bool,
        take_over: TakeOver<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Rolls back what was written since the transaction locked the key. Works in a transaction
    /// that has failed.
    fn undo(connection: &mut Self::Connection) -> impl Future<Output = Result<()>> + Send;

    /// Stores the outcome of a key that this very transaction holds as that attempt. Returns
    /// whether it still holds it.
    fn finish(
        connection: &mut Self::Connection,
        statements: &Self::KeyStatements,
        ask: &Ask,
        attempt: u32,
        end: End<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Changes a key on lease if the holder still has it. Returns the row after that, whoever holds
    /// it.
    fn change(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
        id: &KeyId,
        holder: Uuid,
        change: Change<'_>,
    ) -> impl Future<Output = Result<Option<Record>>> + Send;

    /// Decides about a stuck key and stores the decision. If a holder is given, it must be the last
    /// one. Returns whether there was such a key.
    fn decide(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
        id: &KeyId,
        holder: Option<Uuid>,
        decision: Decision,
        signature: &Signature,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Returns the decisions, the latest first.
    fn decisions(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Decided>>> + Send;

    /// Returns the keys whose lease has expired, the oldest expiry first, and those whose lease
    /// ends further ahead than [`LEASE_MAX`](crate::LEASE_MAX).
    fn stuck(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<StuckKey>>> + Send;

    /// Returns those of the expired ones that were not reported yet, at most `limit`, and marks
    /// them as reported.
    fn report(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<StuckKey>>> + Send;

    /// Deletes keys that have expired by the database's clock and before `until`, at most `limit`.
    /// Returns the number deleted.
    fn forget(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
        until: OffsetDateTime,
        limit: u32,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Deletes decisions from before a moment, from the oldest `limit` ones. Returns the number
    /// deleted.
    fn forget_decisions(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
        before: OffsetDateTime,
        limit: u32,
    ) -> impl Future<Output = Result<u64>> + Send;
}
