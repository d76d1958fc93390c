//! A transaction that runs to its end, as a future.

use std::error::Error;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::transaction::run::TransactionError;

/// The errors that the work of a transaction may return.
///
/// Work whose code only uses `?` leaves its error open. Then the compiler takes the error in the
/// bound `impl Accepts<Rollback>` of [`Outbox::transaction`](crate::Outbox::transaction), because
/// it prefers the bound of an opaque type to an `impl`. For a known error the `impl` below applies.
/// Without this, such work would have to end in `Ok::<_, Rollback>(())`.
pub trait Accepts<E>: 'static {}

impl<A: 'static, E: Error + Send + Sync + 'static> Accepts<E> for A {}

/// A transaction that runs to its end; made by [`Outbox::transaction`](crate::Outbox::transaction).
/// It begins at the first poll.
#[must_use = "nothing runs until it is awaited"]
pub struct Running<T, E: Error + 'static, M> {
    future: Pin<Box<dyn Future<Output = Result<T, TransactionError<E>>> + Send>>,
    accepts: PhantomData<fn() -> M>,
}

impl<T, E: Error + 'static, M> Running<T, E, M> {
    /// `_accepts` only names the type.
    pub(super) fn new(
        _accepts: M,
        future: impl Future<Output = Result<T, TransactionError<E>>> + Send + 'static,
    ) -> Self {
        Self { future: Box::pin(future), accepts: PhantomData }
    }
}

impl<T, E: Error + 'static, M: Accepts<E>> Future for Running<T, E, M> {
    type Output = Result<T, TransactionError<E>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.future.as_mut().poll(context)
    }
}

impl<T, E: Error + 'static, M> std::fmt::Debug for Running<T, E, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}
