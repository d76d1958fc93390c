//! The differences between the databases. Sealed: implemented for `sqlx::Postgres` and
//! `sqlx::Sqlite`.

use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

use migrations::{Backend, Identifier};
use sqlx::Transaction;
use sqlx::pool::PoolConnection;
use time::OffsetDateTime;

use crate::record::{Held, SagaKind};
use crate::statements::Shared;

/// A database that sagas have tables in: PostgreSQL or SQLite.
pub trait Dialect: outbox::Dialect + inbox::Dialect + Store {}

#[cfg(feature = "postgres")]
impl Dialect for sqlx::Postgres {}
#[cfg(feature = "sqlite")]
impl Dialect for sqlx::Sqlite {}

type Result<T> = std::result::Result<T, sqlx::Error>;

/// The outcome of putting a reply into the mailbox.
#[must_use = "a reply that arrived too late was not stored"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replied {
    /// It is kept, for a saga that waits for it now or later.
    Kept,
    /// A reply to the same request was kept before.
    Duplicate,
    /// Not kept: the request has its outcome without a reply, the saga is being or was undone, or
    /// 100 replies for steps that have not begun are kept already.
    Late,
    /// There is no such saga.
    Nobody,
}

/// The operations of sagas that differ between the databases.
#[doc(hidden)]
pub trait Store: Backend {
    /// The rendered SQL.
    type SagaStatements: Send + Sync + 'static;

    /// Begins the transaction of a list, whose statements use an index and sort no table.
    const BEGIN_BY_INDEX: &'static str;

    /// Begins a transaction that changes rows which it finds in the same way.
    const BEGIN_CHANGE_BY_INDEX: &'static str;

    /// Renders the SQL.
    fn saga_statements(schema: Option<&Identifier>) -> Self::SagaStatements;

    /// Returns the statements that every database has.
    fn shared(statements: &Self::SagaStatements) -> Shared;

    /// Begins a transaction that can write.
    fn begin_saga(
        connection: PoolConnection<Self>,
    ) -> impl Future<Output = Result<Transaction<'static, Self>>> + Send + 'static;

    /// Returns whether the transaction is still the one that was begun for an effect and its
    /// record. Returns true without a check if the statements for steps check this themselves.
    fn may_commit_effect(connection: &mut Self::Connection) -> impl Future<Output = Result<bool>> + Send;

    /// See [`Tables::renew`](crate::tables::Tables::renew).
    fn renew_sagas(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        held: &[Held],
        lease: Duration,
    ) -> impl Future<Output = Result<HashSet<Held>>> + Send;

    /// See [`Tables::due_kinds`](crate::tables::Tables::due_kinds).
    fn due_kinds(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        kinds: &[SagaKind],
    ) -> impl Future<Output = Result<Vec<bool>>> + Send;

    /// See [`Tables::finish_all`](crate::tables::Tables::finish_all).
    fn finish_sagas(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        endings: &[(&Held, &str)],
    ) -> impl Future<Output = Result<Vec<bool>>> + Send;

    /// See [`Tables::forget`](crate::tables::Tables::forget).
    fn forget_sagas(
        connection: &mut Self::Connection,
        statements: &Self::SagaStatements,
        retention: Duration,
        until: OffsetDateTime,
    ) -> impl Future<Output = Result<u64>> + Send;
}
