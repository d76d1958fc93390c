//! Stores, reads and closes dead letters.

use std::future::Future;

use message::Fingerprint;
use time::OffsetDateTime;

use super::{Content, Guards, Inserted, Key, NewRow};
use crate::dead_letter::{DeadLetter, DeadLetterId, DeadLetterQuery, Resolution};

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Dead letters.
#[doc(hidden)]
pub trait DeadLetters: Guards {
    /// Stores a dead letter, or counts one more delivery of it. Returns its id.
    fn store_dead_letter(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        letter: &DeadLetter,
    ) -> impl Future<Output = Result<DeadLetterId>> + Send;

    /// Returns the fingerprint of a dead letter with this key that was not discarded. Of several,
    /// takes the one with the fewest deliveries.
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

    /// Reads the dead letters of a message other than `id` that were not discarded, in the order of
    /// their arrival. Prevents others from resolving them until the transaction ends.
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
        row: NewRow<'_>,
        id: DeadLetterId,
    ) -> impl Future<Output = Result<Inserted>> + Send;

    /// Turns the row of a dead letter into that of a message which takes effect in this
    /// transaction. Marks it, and notes its canonical JSON when there is one. Returns the number of
    /// rows changed.
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

    /// Removes dead letters that were resolved before a moment, except late applications: their row
    /// is the only record that the effect happened. Removes at most `limit`; returns the number.
    fn purge_dead_letters(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        before: OffsetDateTime,
        limit: u32,
    ) -> impl Future<Output = Result<u64>> + Send;
}
