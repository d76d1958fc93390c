//! What the databases do differently about keys. They read and write; what follows from it is decided by
//! [`judge`](super::judge::judge). Every call that takes a pool is run to its end.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use migrations::{Backend, Identifier};
use sqlx::{Pool, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;

use super::admin::{Decision, StuckKey};
use super::id::KeyId;
use super::judge::Asked;
use super::record::{Ending, Found, Record};

type Result<T> = std::result::Result<T, sqlx::Error>;

/// A claim, as the database needs it.
#[derive(Debug, Clone)]
pub struct Ask {
    pub(crate) id: KeyId,
    pub(crate) asked: Asked,
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
}

/// What a holder changes about its key.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// The request ended.
    End(Ending, &'a [u8]),
    /// It may be run by anybody.
    Release,
    /// The lease is to last so long from now.
    Renew(Duration),
}

/// The tables of keys.
#[doc(hidden)]
pub trait KeyStore: Backend {
    /// The rendered SQL.
    type KeyStatements: Send + Sync + 'static;

    /// What a transaction that holds a key remembers of its look, for the outcome.
    type Held: fmt::Debug + Send + Sync + 'static;

    /// Renders the SQL.
    fn key_statements(schema: Option<&Identifier>) -> Self::KeyStatements;

    /// Claims a key on lease, in one atomic step. The row as it stands afterwards.
    fn claim(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
        ask: &Ask,
    ) -> impl Future<Output = Result<Found>> + Send;

    /// Begins a transaction that can hold a key.
    fn begin_holding(pool: &Pool<Self>) -> impl Future<Output = Result<Transaction<'static, Self>>> + Send;

    /// Holds a key until the transaction ends, unless somebody else does. The row as it was before.
    fn hold(
        connection: &mut Self::Connection,
        statements: &Self::KeyStatements,
        ask: &Ask,
    ) -> impl Future<Output = Result<(Found, Self::Held)>> + Send;

    /// Fails in a transaction that has failed.
    fn probe(connection: &mut Self::Connection) -> impl Future<Output = Result<()>> + Send;

    /// Stores the outcome of a key that this very transaction has held as that attempt; whether it holds it still.
    fn finish(
        connection: &mut Self::Connection,
        statements: &Self::KeyStatements,
        ask: &Ask,
        held: (u32, &Self::Held),
        end: (Ending, &[u8]),
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Changes a key on lease if the holder still has it. The row as it stands afterwards, whoever has it.
    fn change(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
        id: &KeyId,
        holder: Uuid,
        change: Change<'_>,
    ) -> impl Future<Output = Result<Option<Record>>> + Send;

    /// Decides about a key whose lease has expired; whether there was one.
    fn decide(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
        id: &KeyId,
        decision: Decision,
        operator: &str,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// The keys whose lease has expired, the longest first.
    fn stuck(
        connection: &mut Self::Connection,
        statements: &Self::KeyStatements,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<StuckKey>>> + Send;

    /// How long keys are kept.
    fn retention(
        connection: &mut Self::Connection,
        statements: &Self::KeyStatements,
    ) -> impl Future<Output = Result<Duration>> + Send;

    /// Keeps keys at least so long.
    fn retain(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
        at_least: Duration,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Empties the oldest slot if its keys have outlived the retention; whether it did.
    fn rotate(
        pool: &Pool<Self>,
        statements: &Self::KeyStatements,
    ) -> impl Future<Output = Result<bool>> + Send;
}

/// The stuck key of a row.
pub(crate) fn stuck_key(
    (scope, operation, key): (String, String, String),
    attempt: u32,
    (claimed_at, lease_until): (OffsetDateTime, OffsetDateTime),
) -> Result<StuckKey> {
    let id = KeyId::of_texts(&scope, &operation, &key).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok(StuckKey { id, attempt, claimed_at, lease_until })
}
