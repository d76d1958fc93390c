//! Counts failures, and notes which process has a message in hand.

use std::future::Future;
use std::time::Duration;

use sqlx::Transaction;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Guards, Key};
use crate::attempts::{Attempt, Failed, Forget, InHand, NotedFailure};

type Result<T> = std::result::Result<T, sqlx::Error>;

/// Counting failures.
#[doc(hidden)]
pub trait Attempts: Guards {
    /// Notes a failure; counts it if it has a pause.
    fn count_attempt(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        key: Key<'_>,
        failed: Failed<'_>,
    ) -> impl Future<Output = Result<NotedFailure>> + Send;

    /// Notes when the next attempt is due, as a delay from now.
    fn postpone(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        key: Key<'_>,
        delay: Duration,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Reads the failures of a message.
    fn attempt(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        key: Key<'_>,
    ) -> impl Future<Output = Result<Option<Attempt>>> + Send;

    /// Notes that a process has messages of one consumer in hand, except those that another process
    /// has or had in hand. Returns results in the order of `keys`, which may contain duplicates.
    fn take_in_hand(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        keys: &[Key<'_>],
        process: Uuid,
    ) -> impl Future<Output = Result<Vec<InHand>>> + Send;

    /// Returns whether an open transaction has inserted the inbox row of a message: its handler is
    /// running. `tx` is an empty writing transaction; it is rolled back.
    fn is_being_handled(
        tx: Transaction<'static, Self>,
        statements: &Self::Statements,
        key: Key<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Counts the end of the process `owner` that had a message in hand, and notes that `process`
    /// has it now. Does nothing when another process did so before.
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

    /// Forgets the attempts of those of these messages of one consumer that `forget` names. None of
    /// the messages is in hand any more.
    fn forget_attempts(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        keys: &[Key<'_>],
        forget: Forget,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Forgets failures that began before a moment, and those of messages that took effect; at most
    /// `limit`. Returns the number removed.
    fn purge_attempts(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        before: OffsetDateTime,
        limit: u32,
    ) -> impl Future<Output = Result<u64>> + Send;
}
