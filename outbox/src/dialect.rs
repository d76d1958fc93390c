//! The operations of a database that producers need.

use std::time::Duration;

use message::{Fingerprint, MessageId};
use migrations::{Backend, Identifier};
use sqlx::Pool;
use sqlx::pool::PoolOptions;
use time::OffsetDateTime;

use crate::connect::InvalidUrl;
use crate::new_message::Prepared;
use crate::transaction::UnknownCommit;

/// A database with an outbox. Sealed through [`Backend`]: implemented for `sqlx::Postgres` and
/// `sqlx::Sqlite`.
pub trait Dialect: Backend {
    /// The statements that producers run.
    #[doc(hidden)]
    type Statements: Send + Sync + std::fmt::Debug + 'static;

    /// Renders the statements.
    #[doc(hidden)]
    fn statements(schema: Option<&Identifier>) -> Self::Statements;

    /// Inserts messages with different ids, in their order; those whose supplied id exists already
    /// are left out of the answer. A minted id that exists is a violation of a key.
    #[doc(hidden)]
    fn insert(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        messages: &[&Prepared],
    ) -> impl Future<Output = Result<Inserted, sqlx::Error>> + Send;

    /// Reads the messages that are stored under these ids.
    #[doc(hidden)]
    fn stored(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        ids: &[MessageId],
    ) -> impl Future<Output = Result<Vec<Stored>, sqlx::Error>> + Send;

    /// The database's time.
    #[doc(hidden)]
    fn now(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<OffsetDateTime, sqlx::Error>> + Send;

    /// Finds out whether a transaction has committed, as far as can be told now.
    #[doc(hidden)]
    fn fate(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        commit: &UnknownCommit,
    ) -> impl Future<Output = Result<TransactionStatus, sqlx::Error>> + Send;

    /// Leases the lowest free number: its epoch with it. Nothing when all are held.
    #[doc(hidden)]
    fn take_node(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        holder: &str,
        lease: Duration,
    ) -> impl Future<Output = Result<Option<(i64, i64)>, sqlx::Error>> + Send;

    /// Makes a lease last so long from now; false when somebody else has the number.
    #[doc(hidden)]
    fn renew_node(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        held: (i64, i64),
        lease: Duration,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Gives a number back; false when somebody else has it.
    #[doc(hidden)]
    fn release_node(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        held: (i64, i64),
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Options for connections from a URL.
    #[doc(hidden)]
    fn options(
        url: &str,
        allow_plaintext: bool,
    ) -> Result<<Self::Connection as sqlx::Connection>::Options, InvalidUrl>;

    /// Opens a pool with [`Dialect::pool_options`].
    #[doc(hidden)]
    fn open_pool(
        options: <Self::Connection as sqlx::Connection>::Options,
        idle_in_transaction_max: Duration,
    ) -> impl Future<Output = Result<Pool<Self>, sqlx::Error>> + Send {
        Self::pool_options(idle_in_transaction_max).connect_with(options)
    }

    /// Pool options whose connections are clean when they are lent again.
    #[doc(hidden)]
    fn pool_options(idle_in_transaction_max: Duration) -> PoolOptions<Self>;

    /// The same for a program that does the toolkit's work only: its sessions do not depend on the
    /// defaults of role and database.
    #[doc(hidden)]
    fn own_pool_options(idle_in_transaction_max: Duration) -> PoolOptions<Self> {
        Self::pool_options(idle_in_transaction_max)
    }
}

/// The messages that an insert has stored.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Inserted {
    /// The ids that are new.
    pub ids: Vec<MessageId>,
    /// The transaction that they belong to, where the database has ids for it.
    pub transaction: Option<String>,
}

/// The state of a transaction whose commit is unknown.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionStatus {
    /// It is still running.
    Running,
    /// It is committed: a message that it added is there.
    Committed,
    /// It is rolled back.
    RolledBack,
    /// It is over; none of its messages is there, which may be the work of its own savepoints.
    Unclear,
}

/// The fingerprint that is stored under an id, under which it must not change.
#[doc(hidden)]
#[derive(Debug)]
pub struct Stored {
    /// The id.
    pub id: MessageId,
    /// The fingerprint of what is stored.
    pub fingerprint: Fingerprint,
}

impl Stored {
    /// Whether a message has the same content.
    pub(crate) fn is(&self, prepared: &Prepared) -> bool {
        self.fingerprint == Fingerprint::of(&prepared.message)
    }
}
