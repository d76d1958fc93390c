//! Differences between the databases. The trait is sealed: implemented for `sqlx::Postgres` and
//! `sqlx::Sqlite`.
//!
//! Each part of this trait has its own file in each dialect. The parts do the input and output;
//! their callers, shared by both databases, decide what follows.

use std::future::Future;

use bytes::Bytes;
use message::{Chunk, Fingerprint, Message};
use migrations::{Backend, Identifier};
use sqlx::database::HasStatementCache;
use sqlx::{Pool, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::attempts::{Attempt, Forget, InHand};
use crate::chunks::{Incomplete, Split};
use crate::day::Day;
use crate::dead_letter::{DeadLetter, DeadLetterId, DeadLetterQuery, Resolution};
use crate::decision::Decision;
use crate::guard::canonical_content;
use crate::held_keys::HeldKeys;
use crate::inbox::PayloadComparison;
use crate::minutes::Minutes;
use crate::store_error::StoreError;

/// A database that the inbox has tables in: PostgreSQL or SQLite.
pub trait Dialect:
    outbox::Dialect
    + HasStatementCache
    + parts::Guards
    + parts::Retention
    + parts::Attempts
    + parts::DeadLetters
    + HeldKeys
    + parts::Decisions
    + parts::Chunks
    + parts::Lookup
    + Minutes
{
}

#[cfg(feature = "postgres")]
impl Dialect for sqlx::Postgres {}
#[cfg(feature = "sqlite")]
impl Dialect for sqlx::Sqlite {}

/// The identity of an inbox row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    /// The consumer.
    pub consumer: &'a str,
    /// The tenant.
    pub scope: &'a str,
    /// The message id.
    pub id: Uuid,
}

/// The identity of a set of chunks: one message with one content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChunkSet<'a> {
    /// The key of its inbox row, which is inserted together with the last chunk.
    pub key: Key<'a>,
    /// The fingerprint of the whole, as each chunk promises it.
    pub fingerprint: Fingerprint,
}

/// Returns the splits of a set, from pairs of count and index in ascending order.
pub(crate) fn group_splits(numbers: impl IntoIterator<Item = (u32, u32)>) -> Vec<Split> {
    let mut splits: Vec<Split> = Vec::new();
    for (count, index) in numbers {
        match splits.last_mut() {
            Some(split) if split.count == count => split.held.push(index),
            _ => splits.push(Split { count, held: vec![index] }),
        }
    }
    splits
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

/// Whether the commit checks for the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The commit of the transaction gives proofs: see [`parts::Guards::commit`].
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

/// Identifies a transaction for [`parts::Guards::interrupt`].
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
        /// The session for [`parts::Guards::interrupt`], when the database identifies its sessions.
        session: Option<Session>,
    },
    /// The row was already there.
    Exists(Stored),
    /// The tables no longer remember this id's day. On PostgreSQL the transaction is aborted.
    Forgotten,
}

/// The database's clock and the time where its memory begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The database's time.
    pub now: OffsetDateTime,
    /// Where memory begins; `None` until the inbox is first opened.
    pub retained_from: Option<OffsetDateTime>,
}

/// The parts of a dialect.
pub mod parts {
    use super::*;

    type Result<T> = std::result::Result<T, sqlx::Error>;

    /// Admitting messages.
    #[doc(hidden)]
    pub trait Guards: Backend {
        /// The rendered SQL.
        type Statements: Send + Sync + 'static;

        /// Renders the SQL.
        fn statements(schema: Option<&Identifier>) -> Self::Statements;

        /// Begins a transaction that can write.
        fn begin_writing(
            pool: &Pool<Self>,
        ) -> impl Future<Output = Result<Transaction<'static, Self>>> + Send;

        /// Inserts a row unless its key exists. A new row can be marked: see
        /// [`commit`](Self::commit).
        fn insert(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            key: Key<'_>,
            content: Content<'_>,
            mark: Mark,
        ) -> impl Future<Output = Result<Inserted>> + Send;

        /// Inserts many rows with distinct keys of one consumer. Returns results in the order of
        /// `rows`.
        fn insert_batch(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            rows: &[(Key<'_>, Content<'_>)],
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

        /// Commits if every row that was inserted with a mark is still there, in this very
        /// transaction; otherwise commits nothing. `marked` are the keys of all of them. After an
        /// error that is a refusal, nothing was committed; after any other error that is unknown.
        fn commit(
            tx: Transaction<'static, Self>,
            marked: &[Key<'_>],
        ) -> impl Future<Output = Result<Outcome<Self>>> + Send;

        /// Returns the session of a transaction, when the database identifies sessions. Fails in an
        /// aborted transaction.
        fn session(connection: &mut Self::Connection)
        -> impl Future<Output = Result<Option<Session>>> + Send;

        /// Cancels the running statement of a session if it is still in that transaction. This
        /// aborts the transaction. Does nothing when the database does not identify sessions.
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

    /// Remembering and forgetting.
    #[doc(hidden)]
    pub trait Retention: Guards {
        /// Whether every day can hold rows without being created first.
        const DAYS_ARE_IMPLICIT: bool;

        /// Reads the clock and where memory begins.
        fn read_clock(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
        ) -> impl Future<Output = Result<Reading>> + Send;

        /// Notes where memory begins, unless it is already noted.
        fn begin_memory(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            from: Day,
        ) -> impl Future<Output = Result<()>> + Send;

        /// Returns the days of the range that can hold rows.
        fn days(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            range: (Day, Day),
        ) -> impl Future<Output = Result<Vec<Day>>> + Send;

        /// Makes the days of the range able to hold rows, except days before memory begins: all of
        /// them or none. Call it outside a transaction: it gives way to others and tries again.
        /// Returns the number of days created.
        fn create_days(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            range: (Day, Day),
        ) -> impl Future<Output = std::result::Result<u64, StoreError>> + Send;

        /// Forgets everything before a day and moves the beginning of memory there, in one step or
        /// with the refusal first. Returns the number of days (PostgreSQL) or rows (SQLite)
        /// removed.
        fn expire(
            pool: &Pool<Self>,
            statements: &Self::Statements,
            keep_from: Day,
        ) -> impl Future<Output = std::result::Result<u64, StoreError>> + Send;
    }

    /// Counting failures.
    #[doc(hidden)]
    pub trait Attempts: Guards {
        /// Notes a failure; counts it if it has a pause.
        fn count_attempt(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            key: Key<'_>,
            failed: crate::attempts::Failed<'_>,
        ) -> impl Future<Output = Result<crate::attempts::NotedFailure>> + Send;

        /// Notes when the next attempt is due, as a delay from now.
        fn postpone(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            key: Key<'_>,
            delay: std::time::Duration,
        ) -> impl Future<Output = Result<()>> + Send;

        /// Reads the failures of a message.
        fn attempt(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            key: Key<'_>,
        ) -> impl Future<Output = Result<Option<Attempt>>> + Send;

        /// Notes that a process has messages of one consumer in hand, except those that another
        /// process has or had in hand. Returns results in the order of `keys`, which may contain
        /// duplicates.
        fn take_in_hand(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            keys: &[Key<'_>],
            process: Uuid,
        ) -> impl Future<Output = Result<Vec<InHand>>> + Send;

        /// Returns whether an open transaction has inserted the inbox row of a message: its handler
        /// is running. `tx` is an empty writing transaction; it is rolled back.
        fn is_being_handled(
            tx: Transaction<'static, Self>,
            statements: &Self::Statements,
            key: Key<'_>,
        ) -> impl Future<Output = Result<bool>> + Send;

        /// Counts the end of the process `owner` that had a message in hand, and notes that
        /// `process` has it now. Does nothing when another process did so before.
        fn take_over(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            key: Key<'_>,
            owner: Uuid,
            process: Uuid,
        ) -> impl Future<Output = Result<()>> + Send;

        /// Notes that a process no longer has these messages of one consumer in hand.
        fn put_down(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            keys: &[Key<'_>],
            process: Uuid,
        ) -> impl Future<Output = Result<()>> + Send;

        /// Forgets the attempts of those of these messages of one consumer that `forget` names.
        /// None of the messages is in hand any more.
        fn forget_attempts(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            keys: &[Key<'_>],
            forget: Forget,
        ) -> impl Future<Output = Result<()>> + Send;

        /// Forgets failures that began before a moment, and those of messages that took effect; at
        /// most `limit`. Returns the number removed.
        fn purge_attempts(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            before: OffsetDateTime,
            limit: u32,
        ) -> impl Future<Output = Result<u64>> + Send;
    }

    /// Chunks of messages.
    #[doc(hidden)]
    pub trait Chunks: Guards {
        /// Inserts the set unless it exists, and locks it until the transaction ends. Returns the
        /// size of the whole in bytes, as its first chunk promised it.
        fn hold_set(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            set: ChunkSet<'_>,
            envelope: &Message,
            bytes: u64,
        ) -> impl Future<Output = Result<u64>> + Send;

        /// Stores a chunk unless it exists.
        fn keep_chunk(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            set: ChunkSet<'_>,
            chunk: &Chunk,
            payload: &[u8],
        ) -> impl Future<Output = Result<()>> + Send;

        /// Returns the number of stored chunks of a split into `count`.
        fn count_chunks(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            set: ChunkSet<'_>,
            count: u32,
        ) -> impl Future<Output = Result<u32>> + Send;

        /// Returns whether a chunk is stored.
        fn has_chunk(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            set: ChunkSet<'_>,
            chunk: &Chunk,
        ) -> impl Future<Output = Result<bool>> + Send;

        /// Returns the bytes of all chunks of a split into `count`, in their order.
        fn read_chunks(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            set: ChunkSet<'_>,
            count: u32,
        ) -> impl Future<Output = Result<Bytes>> + Send;

        /// Removes the set and the chunks of all its splits.
        fn remove_set(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            set: ChunkSet<'_>,
        ) -> impl Future<Output = Result<()>> + Send;

        /// Returns sets, the oldest first. With a time, returns only those that began and were last
        /// tried before it.
        fn incomplete(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            begun_before: Option<OffsetDateTime>,
            limit: u32,
        ) -> impl Future<Output = Result<Vec<Incomplete>>> + Send;

        /// Locks a set until the transaction ends. Returns `None` when the set is gone, another
        /// transaction holds it, or it was tried since `tried_before`.
        fn lock_set(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            set: ChunkSet<'_>,
            tried_before: OffsetDateTime,
        ) -> impl Future<Output = Result<Option<Incomplete>>> + Send;
    }

    /// Lookups of messages.
    #[doc(hidden)]
    pub trait Lookup: Guards {
        /// Returns everything that is known of a message, for all consumers.
        fn known(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            id: Uuid,
        ) -> impl Future<Output = Result<Vec<crate::known::Known>>> + Send;

        /// Counts what consumers did with messages whose ids are not below `from`, and what waits.
        /// Counts at most `rows_max` rows of each kind.
        fn activity(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            from: Uuid,
            rows_max: u32,
        ) -> impl Future<Output = Result<crate::activity::ActivityRows>> + Send;
    }

    /// Decisions about dead letters.
    #[doc(hidden)]
    pub trait Decisions: Guards {
        /// Stores a decision. Returns its number, or `None` when the same request is already open.
        fn note_decision(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            decision: &Decision,
        ) -> impl Future<Output = Result<Option<i64>>> + Send;

        /// Notes the outcome of a request. Returns how many open requests had this number.
        fn finish_request(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            number: i64,
            outcome: &str,
        ) -> impl Future<Output = Result<u64>> + Send;

        /// Returns whether a request is open and no other transaction has locked it. Locks it until
        /// this transaction ends.
        fn is_requested(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            number: i64,
        ) -> impl Future<Output = Result<bool>> + Send;

        /// Returns the open requests of a consumer after a number, oldest first.
        fn requests(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            consumer: &str,
            after: i64,
            limit: u32,
        ) -> impl Future<Output = Result<Vec<Decision>>> + Send;

        /// Deletes decisions from before a moment that were carried out, the oldest first; at most
        /// `limit`. Returns the number deleted.
        fn purge_decisions(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            before: OffsetDateTime,
            limit: u32,
        ) -> impl Future<Output = Result<u64>> + Send;

        /// Returns the decisions, newest first.
        fn decisions(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            limit: u32,
        ) -> impl Future<Output = Result<Vec<Decision>>> + Send;
    }

    /// Dead letters.
    #[doc(hidden)]
    pub trait DeadLetters: Guards {
        /// Stores a dead letter, or counts one more delivery of it. Returns its id.
        fn store_dead_letter(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            letter: &DeadLetter,
        ) -> impl Future<Output = Result<DeadLetterId>> + Send;

        /// Returns the fingerprint of a dead letter with this key that was not discarded. Of
        /// several, takes the one with the fewest deliveries.
        fn fingerprint_of_dead_letter(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            key: Key<'_>,
        ) -> impl Future<Output = Result<Option<Fingerprint>>> + Send;

        /// Reads one; `lock` prevents others from resolving it until the transaction ends.
        fn dead_letter(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            id: DeadLetterId,
            lock: bool,
        ) -> impl Future<Output = Result<Option<DeadLetter>>> + Send;

        /// Reads the dead letters of a message other than `id` that were not discarded, in the
        /// order of their arrival. Prevents others from resolving them until the transaction ends.
        fn lock_others(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            key: Key<'_>,
            id: DeadLetterId,
        ) -> impl Future<Output = Result<Vec<DeadLetter>>> + Send;

        /// Reads the dead letters that match a query, oldest first.
        fn dead_letters(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            query: &DeadLetterQuery,
        ) -> impl Future<Output = Result<Vec<DeadLetter>>> + Send;

        /// Inserts the row of a message that became a dead letter, unless its key exists.
        fn insert_dead(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            key: Key<'_>,
            content: Content<'_>,
            id: DeadLetterId,
        ) -> impl Future<Output = Result<Inserted>> + Send;

        /// Turns the row of a dead letter into that of a message which takes effect in this
        /// transaction. Marks it, and notes its canonical JSON when there is one. Returns the
        /// number of rows changed.
        fn clear_dead(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            key: Key<'_>,
            id: DeadLetterId,
            content: Content<'_>,
        ) -> impl Future<Output = Result<u64>> + Send;

        /// Resolves an open dead letter. Returns the number of rows changed.
        fn resolve(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            id: DeadLetterId,
            resolution: Resolution,
        ) -> impl Future<Output = Result<u64>> + Send;

        /// Removes dead letters that were resolved before a moment, except late applications: their
        /// row is the only record that the effect happened. Removes at most `limit`; returns the
        /// number.
        fn purge_dead_letters(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            before: OffsetDateTime,
            limit: u32,
        ) -> impl Future<Output = Result<u64>> + Send;
    }
}
