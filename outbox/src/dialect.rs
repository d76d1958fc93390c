//! The database operations that producers need.

use std::time::Duration;

use message::{MessageId, Prepared, Stored};
use migrations::{Backend, Identifier};
use sqlx::Pool;
use sqlx::pool::PoolOptions;
use time::OffsetDateTime;

use crate::connect::InvalidUrl;
use crate::nodes::HeldNumber;
use crate::pool_error::PoolError;
use crate::transaction::UnknownCommit;

/// A database with an outbox. Sealed through [`Backend`]: implemented for `sqlx::Postgres` and
/// `sqlx::Sqlite`. The dialects of inbox and keys build on it, so its names differ from theirs.
pub trait Dialect: Backend {
    /// The statements that producers run.
    #[doc(hidden)]
    type ProducerStatements: Send + Sync + std::fmt::Debug + 'static;

    /// Renders the statements.
    #[doc(hidden)]
    fn producer_statements(schema: Option<&Identifier>) -> Self::ProducerStatements;

    /// Inserts messages with different ids, in order. Returns the new ids, without supplied ids
    /// that already exist. A generated id that already exists is a unique violation. Inserts
    /// nothing if the transaction is not as required.
    #[doc(hidden)]
    fn insert_messages(
        connection: &mut Self::Connection,
        statements: &Self::ProducerStatements,
        messages: &[&Prepared],
        requires: Requires,
    ) -> impl Future<Output = Result<Inserted, sqlx::Error>> + Send;

    /// Reads the messages that are stored under these ids.
    #[doc(hidden)]
    fn stored(
        connection: &mut Self::Connection,
        statements: &Self::ProducerStatements,
        ids: &[MessageId],
    ) -> impl Future<Output = Result<Vec<Stored>, sqlx::Error>> + Send;

    /// Returns the database's time.
    #[doc(hidden)]
    fn now(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<OffsetDateTime, sqlx::Error>> + Send;

    /// Looks up whether a transaction has committed, as far as the database can answer now.
    #[doc(hidden)]
    fn fate(
        connection: &mut Self::Connection,
        statements: &Self::ProducerStatements,
        commit: &UnknownCommit,
    ) -> impl Future<Output = Result<TransactionStatus, sqlx::Error>> + Send;

    /// Leases the lowest free number. Returns `None` when all are held.
    #[doc(hidden)]
    fn take_node(
        connection: &mut Self::Connection,
        statements: &Self::ProducerStatements,
        holder: &str,
        lease: Duration,
    ) -> impl Future<Output = Result<Option<HeldNumber>, sqlx::Error>> + Send;

    /// Extends a lease to `lease` from now. Returns false when another holder has the number.
    #[doc(hidden)]
    fn renew_node(
        connection: &mut Self::Connection,
        statements: &Self::ProducerStatements,
        held: &HeldNumber,
        lease: Duration,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Releases a number. Returns false when another holder has it.
    #[doc(hidden)]
    fn release_node(
        connection: &mut Self::Connection,
        statements: &Self::ProducerStatements,
        held: &HeldNumber,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Turns a URL into connection options.
    #[doc(hidden)]
    fn options(
        url: &str,
        allow_plaintext: bool,
    ) -> Result<<Self::Connection as sqlx::Connection>::Options, InvalidUrl>;

    /// Opens a pool with [`Dialect::pool_options`], which `adjust` may change.
    #[doc(hidden)]
    fn open_pool(
        url: &str,
        idle_in_transaction_max: Duration,
        adjust: impl FnOnce(PoolOptions<Self>) -> PoolOptions<Self> + Send,
    ) -> impl Future<Output = Result<Pool<Self>, PoolError>> + Send;

    /// Returns pool options that keep an open transaction from reaching the next user of a
    /// connection.
    #[doc(hidden)]
    fn pool_options(idle_in_transaction_max: Duration) -> PoolOptions<Self>;

    /// Returns the same for a program that does only the toolkit's work: its sessions do not depend
    /// on the defaults of role and database.
    #[doc(hidden)]
    fn own_pool_options(idle_in_transaction_max: Duration) -> PoolOptions<Self> {
        Self::pool_options(idle_in_transaction_max)
    }
}

/// The condition under which an insert stores rows: the transaction on its connection.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requires {
    /// Nothing: the client believes that there is one.
    Nothing,
    /// The mark of the transaction that [`begin_marked`](Backend::begin_marked) began. On SQLite,
    /// checking for it ends the caller's savepoints.
    Mark,
}

/// The messages that an insert has stored.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Inserted {
    /// The ids that are new.
    pub ids: Vec<MessageId>,
    /// The id of their transaction, where the database has such ids.
    pub transaction: Option<String>,
}

/// The status of a transaction whose commit is unknown.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionStatus {
    /// This server does not know, because it is a standby.
    NotHere,
    /// It is still running.
    Running,
    /// It is committed: a message that it added exists.
    Committed,
    /// It is rolled back.
    RolledBack,
    /// It has ended and none of its messages exists. Its own savepoints may have removed them.
    Unclear,
}
