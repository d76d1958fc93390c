//! Admits messages: inbox rows, and the transactions that hold them.

use std::future::Future;

use message::Fingerprint;
use migrations::{Backend, Identifier};
use sqlx::{Pool, Transaction};

use super::{Inserted, Key, Mark, NewRow, Outcome, Session, Stored};

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Admitting messages.
#[doc(hidden)]
pub trait Guards: Backend {
    /// The rendered SQL.
    type Statements: Send + Sync + 'static;

    /// Renders the SQL.
    fn statements(schema: Option<&Identifier>) -> Self::Statements;

    /// Begins a transaction that can write.
    fn begin_writing(pool: &Pool<Self>) -> impl Future<Output = Result<Transaction<'static, Self>>> + Send;

    /// Inserts a row unless its key exists. A new row can be marked: see
    /// [`commit`](Self::commit).
    fn insert(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        row: NewRow<'_>,
        mark: Mark,
    ) -> impl Future<Output = Result<Inserted>> + Send;

    /// Inserts many rows with distinct keys of one consumer. Returns results in the order of
    /// `rows`.
    fn insert_batch(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        rows: &[NewRow<'_>],
        mark: Mark,
    ) -> impl Future<Output = Result<Vec<Inserted>>> + Send;

    /// Reads the fingerprint of a row's canonical JSON.
    fn canonical(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        key: Key<'_>,
    ) -> impl Future<Output = Result<Option<Fingerprint>>> + Send;

    /// Reads a row.
    fn find(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        key: Key<'_>,
    ) -> impl Future<Output = Result<Option<Stored>>> + Send;

    /// Returns whether every row that was inserted with a mark is still there, in this very
    /// transaction. `marked` are the keys of all of them.
    fn has_marked(
        connection: &mut Self::Connection,
        marked: &[Key<'_>],
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Commits if every row that was inserted with a mark is still there, in this very transaction;
    /// otherwise commits nothing. `marked` are the keys of all of them. After an error that is a
    /// refusal, nothing was committed; after any other error that is unknown.
    fn commit(
        tx: Transaction<'static, Self>,
        marked: &[Key<'_>],
    ) -> impl Future<Output = Result<Outcome<Self>>> + Send;

    /// Returns the session of a transaction, when the database identifies sessions. Fails in an
    /// aborted transaction.
    fn session(connection: &mut Self::Connection) -> impl Future<Output = Result<Option<Session>>> + Send;

    /// Cancels the running statement of a session if it is still in that transaction. This aborts
    /// the transaction. Does nothing when the database does not identify sessions.
    fn interrupt(
        connection: &mut Self::Connection,
        session: Session,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Stores the result of a row. Returns the number of rows changed.
    fn complete(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        key: Key<'_>,
        result: &[u8],
    ) -> impl Future<Output = Result<u64>> + Send;
}
