//! The differences between the databases. Sealed: implemented for `sqlx::Postgres` and
//! `sqlx::Sqlite`.
//!
//! Each dialect has the same files as this trait has parts. The parts do the input and output.
//! Their callers decide once what follows from it.

use std::future::Future;

use bytes::Bytes;
use message::{Chunk, Fingerprint, Message};
use migrations::{Backend, Identifier};
use sqlx::database::HasStatementCache;
use sqlx::{Pool, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::attempts::{Attempt, InHand};
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
    Backend
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
    /// Who consumes.
    pub consumer: &'a str,
    /// For whom.
    pub scope: &'a str,
    /// The message id.
    pub id: Uuid,
}

/// The identity of a set of chunks: of one message with one content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChunkSet<'a> {
    /// Of its inbox row, which comes to be with the last chunk.
    pub key: Key<'a>,
    /// Of the whole, as each chunk promises it.
    pub fingerprint: Fingerprint,
}

/// The splits of a set, from pairs of count and index in ascending order.
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

/// Tells messages under one id apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content<'a> {
    /// The fingerprint of the whole message.
    pub fingerprint: Fingerprint,
    /// The outbox that it comes from.
    pub source: &'a str,
    /// The fingerprint of its canonical JSON, where contents are compared and it is JSON.
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
    /// Its source; nothing in a row that another program or an earlier version made.
    pub source: Option<String>,
    /// The result that the handler returned.
    pub result: Option<Vec<u8>>,
    /// When.
    pub processed_at: OffsetDateTime,
    /// The dead letter that it ended as, instead of taking effect.
    pub dead_letter: Option<DeadLetterId>,
}

/// Whether a row is looked for at the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The transaction's commit gives proofs: see [`parts::Guards::commit`].
    Yes,
    /// The caller commits.
    No,
}

/// The outcome of a commit.
#[derive(Debug)]
pub enum Outcome<DB: Backend> {
    /// It is done. With it the next transaction, where the database begins one in the same message.
    Done(Option<Transaction<'static, DB>>),
    /// A marked row was gone: nothing is committed.
    Gone,
}

/// The name of a transaction for [`parts::Guards::interrupt`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// The server's process.
    pub process: i32,
    /// The number of the transaction that it is in.
    pub transaction: i64,
}

/// The outcome of an insert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inserted {
    /// The row is new, in this transaction.
    New {
        /// When, by the database.
        processed_at: OffsetDateTime,
        /// The session for [`parts::Guards::interrupt`], where the database names its sessions.
        session: Option<Session>,
    },
    /// The row was there.
    Exists(Stored),
    /// The tables no longer remember this id's day. On PostgreSQL the transaction is aborted.
    Forgotten,
}

/// The database's clock and where its memory begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The database's time.
    pub now: OffsetDateTime,
    /// Where memory begins; nothing before the inbox was first opened.
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

        /// Inserts a row unless its key is there. A new one can be marked: see
        /// [`commit`](Self::commit).
        fn insert(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            key: Key<'_>,
            content: Content<'_>,
            mark: Mark,
        ) -> impl Future<Output = Result<Inserted>> + Send;

        /// Inserts many rows with different keys of one consumer; results in the order of `rows`.
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

        /// Commits if every row that was inserted with a mark is still there, in this very
        /// transaction; otherwise nothing is committed. `marked` are all of them. An error that is
        /// a refusal says that nothing was committed; after any other that is unknown.
        fn commit(
            tx: Transaction<'static, Self>,
            marked: &[Key<'_>],
        ) -> impl Future<Output = Result<Outcome<Self>>> + Send;

        /// The session of a transaction, where sessions have names. Fails in a transaction that is
        /// aborted.
        fn session(connection: &mut Self::Connection)
        -> impl Future<Output = Result<Option<Session>>> + Send;

        /// Ends what a session is doing at this moment, if it is still in that transaction, which
        /// is aborted by that. Nothing where sessions have no names.
        fn interrupt(
            connection: &mut Self::Connection,
            session: Session,
        ) -> impl Future<Output = Result<()>> + Send;

        /// Stores the result of a row; how many rows there were.
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
        /// Whether any day can hold rows without being created first.
        const DAYS_ARE_IMPLICIT: bool;

        /// Reads the clock and where memory begins.
        fn read_clock(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
        ) -> impl Future<Output = Result<Reading>> + Send;

        /// Notes where memory begins, unless that is noted already.
        fn begin_memory(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            from: Day,
        ) -> impl Future<Output = Result<()>> + Send;

        /// The days of the range that can hold rows.
        fn days(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            range: (Day, Day),
        ) -> impl Future<Output = Result<Vec<Day>>> + Send;

        /// Makes the days of the range able to hold rows, but none before memory begins: all of
        /// them or none. Outside of a transaction: it gives way to others and tries again. How many
        /// it made.
        fn create_days(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            range: (Day, Day),
        ) -> impl Future<Output = std::result::Result<u64, StoreError>> + Send;

        /// Forgets everything before a day and moves the beginning of memory there, in one step or
        /// with the refusal first. How many days (PostgreSQL) or rows (SQLite) went.
        fn expire(
            pool: &Pool<Self>,
            statements: &Self::Statements,
            keep_from: Day,
        ) -> impl Future<Output = std::result::Result<u64, StoreError>> + Send;
    }

    /// Counting failures.
    #[doc(hidden)]
    pub trait Attempts: Guards {
        /// Notes a failure and counts it, or does not. How many were counted, and the time since
        /// the first was noted.
        fn count_attempt(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            key: Key<'_>,
            error: &str,
            is_counted: bool,
        ) -> impl Future<Output = Result<(u32, std::time::Duration)>> + Send;

        /// Notes how long from now the message waits.
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

        /// Notes that a process has messages of one consumer in hand, except those that another one
        /// has or had; results in the order of `keys`, which may repeat.
        fn take_in_hand(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            keys: &[Key<'_>],
            process: Uuid,
        ) -> impl Future<Output = Result<Vec<InHand>>> + Send;

        /// Whether a transaction that is open at this moment has the inbox row of a message: its
        /// handler runs. `tx` is a writing transaction with nothing in it; it is rolled back.
        fn is_being_handled(
            tx: Transaction<'static, Self>,
            statements: &Self::Statements,
            key: Key<'_>,
        ) -> impl Future<Output = Result<bool>> + Send;

        /// Counts the end of the process that had a message in hand, and notes that another one has
        /// it, unless yet another one was faster.
        fn take_over(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            key: Key<'_>,
            owner: Uuid,
            process: Uuid,
        ) -> impl Future<Output = Result<()>> + Send;

        /// Notes that a process has messages of one consumer in hand no longer.
        fn put_down(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            keys: &[Key<'_>],
            process: Uuid,
        ) -> impl Future<Output = Result<()>> + Send;

        /// Forgets the failures of messages of one consumer: all, or only where none of them was
        /// counted; those are not in hand any more.
        fn forget_attempts(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            keys: &[Key<'_>],
            also_counted: bool,
        ) -> impl Future<Output = Result<()>> + Send;

        /// Forgets failures that began before a moment, and those of messages that took effect; at
        /// most `limit`.
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
        /// Makes the set unless it is there, and locks it until the transaction ends. The bytes of
        /// the whole, as its first chunk said.
        fn hold_set(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            set: ChunkSet<'_>,
            envelope: &Message,
            bytes: u64,
        ) -> impl Future<Output = Result<u64>> + Send;

        /// Keeps a chunk unless it is there.
        fn keep_chunk(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            set: ChunkSet<'_>,
            chunk: &Chunk,
            payload: &[u8],
        ) -> impl Future<Output = Result<()>> + Send;

        /// How many chunks of a split into `count` are there.
        fn count_chunks(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            set: ChunkSet<'_>,
            count: u32,
        ) -> impl Future<Output = Result<u32>> + Send;

        /// Whether a chunk is there.
        fn has_chunk(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            set: ChunkSet<'_>,
            chunk: &Chunk,
        ) -> impl Future<Output = Result<bool>> + Send;

        /// The bytes of all chunks of a split into `count`, in their order.
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

        /// Sets, the oldest first; with a time only those that began and were tried last before.
        fn incomplete(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            begun_before: Option<OffsetDateTime>,
            limit: u32,
        ) -> impl Future<Output = Result<Vec<Incomplete>>> + Send;

        /// Locks a set until the transaction ends; nothing when it is gone, another transaction
        /// holds it, or it was tried since.
        fn lock_set(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            set: ChunkSet<'_>,
            tried_before: OffsetDateTime,
        ) -> impl Future<Output = Result<Option<Incomplete>>> + Send;
    }

    /// Looking messages up.
    #[doc(hidden)]
    pub trait Lookup: Guards {
        /// Everything that is known of a message, over all consumers.
        fn known(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            id: Uuid,
        ) -> impl Future<Output = Result<Vec<crate::known::Known>>> + Send;

        /// Counts what consumers did with messages whose ids begin at `from`, and what waits; at
        /// most `rows_max` rows of each kind are counted.
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
        /// Notes a decision; nothing when the same request is open already. Its number.
        fn note_decision(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            decision: &Decision,
        ) -> impl Future<Output = Result<Option<i64>>> + Send;

        /// Notes what came of a request; how many open ones had this number.
        fn finish_request(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            number: i64,
            outcome: &str,
        ) -> impl Future<Output = Result<u64>> + Send;

        /// Whether a request is open and no other transaction has it; locked until this one ends.
        fn is_requested(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            number: i64,
        ) -> impl Future<Output = Result<bool>> + Send;

        /// The open requests of a consumer behind a number, oldest first.
        fn requests(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            consumer: &str,
            after: i64,
            limit: u32,
        ) -> impl Future<Output = Result<Vec<Decision>>> + Send;

        /// Deletes decisions from before a moment that were carried out, of the oldest `limit`
        /// ones. Returns how many.
        fn purge_decisions(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            before: OffsetDateTime,
            limit: u32,
        ) -> impl Future<Output = Result<u64>> + Send;

        /// The decisions, newest first.
        fn decisions(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            limit: u32,
        ) -> impl Future<Output = Result<Vec<Decision>>> + Send;
    }

    /// Dead letters.
    #[doc(hidden)]
    pub trait DeadLetters: Guards {
        /// Stores a dead letter, or counts one more delivery of it. Its id.
        fn store_dead_letter(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            letter: &DeadLetter,
        ) -> impl Future<Output = Result<DeadLetterId>> + Send;

        /// Returns the fingerprint of a dead letter with this key that was not given up; of
        /// several, that of the one that was delivered least often.
        fn fingerprint_of_dead_letter(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            key: Key<'_>,
        ) -> impl Future<Output = Result<Option<Fingerprint>>> + Send;

        /// Reads one; `lock` keeps others from resolving it until the transaction ends.
        fn dead_letter(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            id: DeadLetterId,
            lock: bool,
        ) -> impl Future<Output = Result<Option<DeadLetter>>> + Send;

        /// Reads a page, oldest first.
        fn dead_letters(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            query: &DeadLetterQuery,
        ) -> impl Future<Output = Result<Vec<DeadLetter>>> + Send;

        /// Inserts the row of a message that ended as a dead letter, unless its key is there.
        fn insert_dead(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            key: Key<'_>,
            content: Content<'_>,
            id: DeadLetterId,
        ) -> impl Future<Output = Result<Inserted>> + Send;

        /// Turns the row of a dead letter into that of a message which takes effect in this
        /// transaction, with a mark, and notes its canonical JSON where there is one; how many rows
        /// there were.
        fn clear_dead(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            key: Key<'_>,
            id: DeadLetterId,
            content: Content<'_>,
        ) -> impl Future<Output = Result<u64>> + Send;

        /// Resolves an open one; how many there were.
        fn resolve(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            id: DeadLetterId,
            resolution: Resolution,
        ) -> impl Future<Output = Result<u64>> + Send;

        /// Removes what was resolved before a moment, except late applications: their row is the
        /// only record that the effect happened. At most `limit`.
        fn purge_dead_letters(
            connection: &mut Self::Connection,
            statements: &Self::Statements,
            before: OffsetDateTime,
            limit: u32,
        ) -> impl Future<Output = Result<u64>> + Send;
    }
}
