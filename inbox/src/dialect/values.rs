//! The values that statements take and return: keys, contents, rows and outcomes.

use message::Fingerprint;
use migrations::Backend;
use sqlx::Transaction;
use time::OffsetDateTime;

use crate::comparison::{Content, Stored};
use crate::ids::Key;

/// The identity of a set of chunks: one message with one content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ChunkSet<'a> {
    /// The key of its inbox row, which is inserted together with the last chunk.
    pub key: Key<'a>,
    /// The fingerprint of the whole, as each chunk promises it.
    pub fingerprint: Fingerprint,
}

/// Which sets of chunks are overdue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overdue<'a> {
    /// Only sets that began and were last tried before this time.
    pub before: OffsetDateTime,
    /// Only sets of this consumer; `None` for those of all consumers.
    pub consumer: Option<&'a str>,
    /// Sets of other consumers must also have begun before this time.
    pub others_before: OffsetDateTime,
}

/// An inbox row to insert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewRow<'a> {
    /// Its key.
    pub key: Key<'a>,
    /// Its content.
    pub content: Content<'a>,
}

/// Whether a row is marked, so that the commit checks that it is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The commit of the transaction gives proofs: see
    /// [`Guards::commit`](super::Guards::commit).
    Yes,
    /// The caller commits.
    No,
}

/// The outcome of a commit.
#[derive(Debug)]
pub enum Outcome<DB: Backend> {
    /// It is committed. Contains the next transaction when the database began one in the same
    /// message.
    Done(Option<Transaction<'static, DB>>),
    /// A marked row was missing: nothing is committed.
    Gone,
}

/// Identifies a transaction for [`Guards::interrupt`](super::Guards::interrupt).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// The id of the server process.
    pub process: i32,
    /// The number of the transaction that the process is in.
    pub transaction: i64,
}

/// The outcome of an insert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inserted {
    /// The row is new, inserted by this transaction.
    New {
        /// When, by the database's clock.
        processed_at: OffsetDateTime,
        /// The session for [`Guards::interrupt`](super::Guards::interrupt), when the
        /// database identifies its sessions.
        session: Option<Session>,
    },
    /// The row was already there.
    Exists(Stored),
    /// The tables no longer remember this id's day. On PostgreSQL the transaction is aborted.
    Forgotten,
}

/// The database's clock and the time where its memory begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The database's time.
    pub now: OffsetDateTime,
    /// Where memory begins; `None` until the inbox is first opened.
    pub retained_from: Option<OffsetDateTime>,
}
