//! Differences between the databases for keys. These functions read and write;
//! [`decide`](crate::decide::decide) decides what follows. What all databases do in the same way is
//! written once, in `tables`. Run every call that takes a pool to its end.

use std::future::Future;
use std::time::Duration;

use message::token::Drift;
use migrations::query::{Query, Row};
use migrations::{Identifier, Line};
use outbox::{Audit, Bounded, Signature};
use sqlx::pool::PoolConnection;
use sqlx::{Pool, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::decide::Asked;
use crate::id::KeyId;
use crate::record::{Action, Ending, Record};
use crate::statements::Shared;
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
pub(crate) struct TakeOver<'a> {
    /// The number of the new attempt.
    pub(crate) attempt: u32,
    /// The row that was read.
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

/// The tables of idempotency keys, in a schema.
pub struct KeyTables<DB: KeyStore> {
    pub(crate) shared: Shared,
    /// The SQL that only this database has.
    pub(crate) own: DB::KeyStatements,
    /// The decisions of operators.
    pub(crate) audit: Audit,
}

impl<DB: KeyStore> KeyTables<DB> {
    pub(crate) fn new(schema: Option<&Identifier>) -> Self {
        let own = DB::key_statements(schema);
        let audit = Audit::new::<DB>(schema, Line::Idempotency, "scope, operation, key");
        Self { shared: DB::shared_key_statements(&own), own, audit }
    }
}

/// A database that can store keys: PostgreSQL or SQLite. Sealed.
pub trait KeyStore: outbox::Dialect {
    /// The rendered SQL.
    type KeyStatements: Send + Sync + 'static;

    /// Whether sessions keep the plans of statements that search for rows.
    const KEEPS_PLANS: bool;

    /// Whether a key that a transaction holds also has a lease.
    const LEASES_ALWAYS: bool;

    /// Renders the SQL.
    fn key_statements(schema: Option<&Identifier>) -> Self::KeyStatements;

    /// Returns the statements that every database has.
    fn shared_key_statements(statements: &Self::KeyStatements) -> Shared;

    /// Begins a transaction that tries to lock a key until it ends, with a savepoint after the
    /// lock. Every later statement sees the commits of earlier owners of the lock.
    fn begin_holding(
        connection: PoolConnection<Self>,
        tables: &KeyTables<Self>,
        ask: &Ask,
    ) -> impl Future<Output = Result<Transaction<'static, Self>>> + Send;

    /// Begins a transaction of the same kind without a key, with the mark of
    /// [`own_transaction`](migrations::own_transaction).
    fn begin_plain(
        connection: PoolConnection<Self>,
    ) -> impl Future<Output = Result<Transaction<'static, Self>>> + Send + 'static;

    /// Rolls back the writes since the transaction locked the key. Works in a transaction that has
    /// failed.
    fn undo(connection: &mut Self::Connection) -> impl Future<Output = Result<()>> + Send;

    /// Returns whether this very transaction may still hold its key. Returns true without a check
    /// if the statement that stores an outcome checks this itself.
    fn may_finish(connection: &mut Self::Connection) -> impl Future<Output = Result<bool>> + Send;

    /// Changes a key on lease if the holder still has it. Returns the row after that, whoever holds
    /// it.
    fn change(
        pool: &Pool<Self>,
        tables: &KeyTables<Self>,
        id: &KeyId,
        holder: Uuid,
        change: Change<'_>,
    ) -> impl Future<Output = Result<Option<Record>>> + Send;

    /// Decides about a stuck key and stores the decision. If a holder is given, it must be the last
    /// one. Returns whether there was such a key.
    fn decide(
        pool: &Pool<Self>,
        tables: &KeyTables<Self>,
        id: &KeyId,
        holder: Option<Uuid>,
        action: Action,
        signature: &Signature,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Runs a statement about stuck keys in its own transaction, and returns its rows. It finds
    /// them by their indexes.
    fn rows_of_stuck(
        db: &Bounded<Self>,
        query: Query<Self>,
    ) -> impl Future<Output = Result<Vec<Row<Self>>>> + Send;
}
