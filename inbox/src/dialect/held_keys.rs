//! Reads and changes held messages: dead letters that wait behind another one of their key.

use std::future::Future;

use time::OffsetDateTime;

use super::Guards;
use crate::dead_letter::{DeadLetter, DeadLetterId};
use crate::held_keys::{Closed, HeldFirst, HeldKey};
use crate::store_dead_letter::Cause;

type Result<T> = std::result::Result<T, sqlx::Error>;

/// The statements about held messages.
#[doc(hidden)]
pub trait HeldKeys: Guards {
    /// Returns the first open dead letter that holds each of these keys, in their order.
    fn holders(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        consumer: &str,
        keys: &[HeldKey],
    ) -> impl Future<Output = Result<Vec<Option<DeadLetterId>>>> + Send;

    /// Returns the first open dead letter that holds the key of dead letter `id` and is before it.
    fn holder_before(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        id: DeadLetterId,
    ) -> impl Future<Output = Result<Option<DeadLetterId>>> + Send;

    /// Returns the first held message of each of the next keys after `after`, in the order of the
    /// keys.
    fn held_firsts(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        consumer: &str,
        after: Option<&HeldKey>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<HeldFirst>>> + Send;

    /// Returns the dead letters that were closed since a moment, the latest first.
    fn closed_since(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        since: OffsetDateTime,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Closed>>> + Send;

    /// Reads and locks a held message. Returns `None` when it is no longer held, or another
    /// transaction has the lock.
    fn lock_held(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        id: DeadLetterId,
    ) -> impl Future<Output = Result<Option<DeadLetter>>> + Send;

    /// Turns a held message into an ordinary dead letter. Returns the number of rows changed.
    fn fail_held(
        connection: &mut Self::Connection,
        statements: &Self::Statements,
        id: DeadLetterId,
        cause: &Cause,
    ) -> impl Future<Output = Result<u64>> + Send;
}
