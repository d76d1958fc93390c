//! The values that statements take and return: keys, contents, rows and outcomes.

use message::{Fingerprint, Message};
use migrations::Backend;
use sqlx::Transaction;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::dead_letter::DeadLetterId;
use crate::guard::canonical_content;
use crate::options::PayloadComparison;

/// The identity of an inbox row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    /// The consumer.
    pub consumer: &'a str,
    /// The tenant.
    pub tenant: &'a str,
    /// The message id.
    pub id: Uuid,
}

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

/// The part of a message that distinguishes it from other messages with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content<'a> {
    /// The fingerprint of the whole message.
    pub fingerprint: Fingerprint,
    /// The outbox that published it.
    pub source: &'a str,
    /// The fingerprint of its canonical JSON; `None` when contents are not compared or are not
    /// JSON.
    pub canonical: Option<Fingerprint>,
}

impl<'a> Content<'a> {
    pub(crate) fn of(message: &'a Message, payloads: PayloadComparison) -> Self {
        let canonical = match payloads {
            PayloadComparison::Bytes => None,
            PayloadComparison::CanonicalJson => canonical_content(message),
        };
        Self { fingerprint: Fingerprint::of(message), source: message.source.as_str(), canonical }
    }

    pub(crate) fn canonical_bytes(&self) -> Option<&[u8]> {
        self.canonical.as_ref().map(|canonical| &canonical.as_bytes()[..])
    }
}

/// An inbox row to insert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewRow<'a> {
    /// Its key.
    pub key: Key<'a>,
    /// Its content.
    pub content: Content<'a>,
}

/// The content of an inbox row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The fingerprint of the message that was processed.
    pub fingerprint: Fingerprint,
    /// Its source; `None` in a row written by another program or an earlier version.
    pub source: Option<String>,
    /// The result that the handler returned.
    pub result: Option<Vec<u8>>,
    /// When the row was inserted.
    pub processed_at: OffsetDateTime,
    /// The dead letter that the message became instead of taking effect.
    pub dead_letter: Option<DeadLetterId>,
}

/// Whether a row is marked, so that the commit checks that it still exists.
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
