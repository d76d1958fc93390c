//! Records which process has a message in hand, and forgets failures.

use std::future::Future;

use sqlx::Transaction;
use uuid::Uuid;

use super::Guards;
use crate::attempts::{Forget, InHand};
use crate::ids::Key;
use crate::tables::Tables;

type Result<T> = std::result::Result<T, sqlx::Error>;

/// The attempts of many messages.
#[doc(hidden)]
pub trait Attempts: Guards {
    /// Records that a process has messages of one consumer in hand, except those that another
    /// process has or had in hand. Returns results in the order of `keys`, which may contain
    /// duplicates.
    fn take_in_hand(
        connection: &mut Self::Connection,
        tables: &Tables<Self>,
        keys: &[Key<'_>],
        process: Uuid,
    ) -> impl Future<Output = Result<Vec<InHand>>> + Send;

    /// Returns whether an open transaction has inserted the inbox row of a message: its handler is
    /// running. `tx` is an empty writing transaction; it is rolled back.
    fn is_being_handled(
        tx: Transaction<'static, Self>,
        tables: &Tables<Self>,
        key: Key<'_>,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Records that a process no longer has these messages of one consumer in hand.
    fn put_down(
        connection: &mut Self::Connection,
        tables: &Tables<Self>,
        keys: &[Key<'_>],
        process: Uuid,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Of these messages of one consumer, deletes the attempts of those in `forget`. None of the
    /// messages is in hand afterwards.
    fn forget_attempts(
        connection: &mut Self::Connection,
        tables: &Tables<Self>,
        keys: &[Key<'_>],
        forget: Forget,
    ) -> impl Future<Output = Result<()>> + Send;
}
