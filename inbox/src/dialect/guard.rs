//! Admits messages: inbox rows, and the transactions that hold them.

use std::future::Future;
use std::time::Duration;

use migrations::query::Row;
use sqlx::Transaction;
use sqlx::pool::PoolConnection;

use super::{Inserted, Mark, NewRow, Outcome, Session};
use crate::ids::Key;
use crate::statements::Texts;
use crate::tables::Tables;

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Admitting messages.
#[doc(hidden)]
pub trait Guards: Texts {
    /// Whether sessions keep the plans of statements that read or change existing rows of messages.
    const KEEPS_PLANS: bool;

    /// Whether the insert of a row whose day is forgotten inserts nothing, without an error.
    const INSERTS_NOTHING_FORGOTTEN: bool;

    /// Begins a transaction that can write.
    fn begin_writing(
        connection: PoolConnection<Self>,
    ) -> impl Future<Output = Result<Transaction<'static, Self>>> + Send + 'static;

    /// Begins a transaction in which the inbox itself writes, for example a dead letter, whose
    /// delivery is acknowledged next. Its commit waits for the disk. On SQLite, all transactions
    /// that the toolkit begins do.
    fn begin_durable(
        connection: PoolConnection<Self>,
    ) -> impl Future<Output = Result<Transaction<'static, Self>>> + Send + 'static {
        Self::begin_writing(connection)
    }

    /// Sets how long each statement of a transaction waits for a lock, where the database locks
    /// single rows.
    fn limit_lock_waits(
        _tx: &mut Self::Connection,
        _limit: Duration,
    ) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }

    /// Reads the session that inserted a row, when the database identifies sessions.
    fn session_of(row: &Row<Self>) -> Result<Option<Session>>;

    /// Returns whether an insert failed because the day of its row is forgotten.
    fn is_of_forgotten_day(error: &sqlx::Error) -> bool;

    /// Inserts many rows with distinct keys of one consumer. Returns results in the order of
    /// `rows`.
    fn insert_batch(
        connection: &mut Self::Connection,
        tables: &Tables<Self>,
        rows: &[NewRow<'_>],
        mark: Mark,
    ) -> impl Future<Output = Result<Vec<Inserted>>> + Send;

    /// Returns whether every row that was inserted with a mark still exists in this transaction.
    /// `marked` are the keys of all of them.
    fn has_marked(
        connection: &mut Self::Connection,
        tables: &Tables<Self>,
        marked: &[Key<'_>],
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Commits if every row that was inserted with a mark still exists in this transaction;
    /// otherwise commits nothing. `marked` are the keys of all of them. After an error that is a
    /// refusal, nothing was committed; after any other error that is unknown.
    fn commit(
        tx: Transaction<'static, Self>,
        tables: &Tables<Self>,
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
}
