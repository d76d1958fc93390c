//! The code of steps and undos, as closures.
//!
//! The traits of this module are implemented for every closure of their form. They promise that the
//! futures can be sent to another thread, which async closures alone do not.

use std::future::Future;
use std::marker::PhantomData;

use outbox::OutboxTransaction;

use crate::dialect::Dialect;
use crate::key::StepKey;
use crate::stop::StepError;

/// The errors that a closure may return: all errors that `?` converts into a [`StepError`].
///
/// A closure that ends in a call returns the error of that call. Others leave their error open:
/// `async |tx| { tx.enqueue(&event).await?; Ok(()) }` may return any error that `?` can make.
/// Therefore the builder of a step has a parameter `impl Accepts<StepError>`, and its `.await`
/// requires that this parameter accepts the error of the closure. The compiler prefers the bound of
/// an opaque type to an `impl`: an open error becomes the one in the bound, a [`StepError`], and
/// for a known one the `impl` below applies. Without this, such closures would have to end in
/// `Ok::<_, StepError>(())`.
pub trait Accepts<E>: 'static {}

impl<A: 'static, E: Into<StepError>> Accepts<E> for A {}

/// A closure, and the error that it returns.
pub struct Code<F, E, M> {
    closure: F,
    error: PhantomData<fn() -> (E, M)>,
}

impl<F, E, M> Code<F, E, M> {
    /// `_accepts` only names the type.
    pub(super) fn new(closure: F, _accepts: M) -> Self {
        Self { closure, error: PhantomData }
    }

    pub(super) fn into_closure(self) -> F {
        self.closure
    }
}

/// The effect of a step: `async |tx| { … }` with an [`OutboxTransaction`].
pub trait StepWork<'t, DB: Dialect, T, E> {
    /// Its future.
    type Future: Future<Output = Result<T, E>> + Send;
    /// Begins the work.
    fn run(self, tx: &'t mut OutboxTransaction<DB>) -> Self::Future;
}

impl<'t, DB, T, E, F, Fut> StepWork<'t, DB, T, E> for F
where
    DB: Dialect,
    F: FnOnce(&'t mut OutboxTransaction<DB>) -> Fut,
    Fut: Future<Output = Result<T, E>> + Send,
{
    type Future = Fut;

    fn run(self, tx: &'t mut OutboxTransaction<DB>) -> Fut {
        self(tx)
    }
}

/// The effect of a call: `async |key: &StepKey| { … }`.
pub trait CallWork<'t, T, E> {
    /// Its future.
    type Future: Future<Output = Result<T, E>> + Send;
    /// Begins the work.
    fn run(self, key: &'t StepKey) -> Self::Future;
}

impl<'t, T, E, F, Fut> CallWork<'t, T, E> for F
where
    F: FnOnce(&'t StepKey) -> Fut,
    Fut: Future<Output = Result<T, E>> + Send,
{
    type Future = Fut;

    fn run(self, key: &'t StepKey) -> Fut {
        self(key)
    }
}

/// The undo of a step: `async |tx, result: &T| { … }`.
pub trait StepUndo<'t, DB: Dialect, T: 't, E> {
    /// Its future.
    type Future: Future<Output = Result<(), E>> + Send;
    /// Begins the undo.
    fn run(self, tx: &'t mut OutboxTransaction<DB>, result: &'t T) -> Self::Future;
}

impl<'t, DB, T, E, F, Fut> StepUndo<'t, DB, T, E> for F
where
    DB: Dialect,
    T: 't,
    F: FnOnce(&'t mut OutboxTransaction<DB>, &'t T) -> Fut,
    Fut: Future<Output = Result<(), E>> + Send,
{
    type Future = Fut;

    fn run(self, tx: &'t mut OutboxTransaction<DB>, result: &'t T) -> Fut {
        self(tx, result)
    }
}

/// The undo of a request: `async |tx, reply: Option<&T>| { … }`.
pub trait TxUndo<'t, DB: Dialect, T: 't, E> {
    /// Its future.
    type Future: Future<Output = Result<(), E>> + Send;
    /// Begins the undo.
    fn run(self, tx: &'t mut OutboxTransaction<DB>, reply: Option<&'t T>) -> Self::Future;
}

impl<'t, DB, T, E, F, Fut> TxUndo<'t, DB, T, E> for F
where
    DB: Dialect,
    T: 't,
    F: FnOnce(&'t mut OutboxTransaction<DB>, Option<&'t T>) -> Fut,
    Fut: Future<Output = Result<(), E>> + Send,
{
    type Future = Fut;

    fn run(self, tx: &'t mut OutboxTransaction<DB>, reply: Option<&'t T>) -> Fut {
        self(tx, reply)
    }
}

/// The undo of a call: `async |key: &StepKey, result: Option<&T>| { … }`.
pub trait CallUndo<'t, T: 't, E> {
    /// Its future.
    type Future: Future<Output = Result<(), E>> + Send;
    /// Begins the undo.
    fn run(self, key: &'t StepKey, result: Option<&'t T>) -> Self::Future;
}

impl<'t, T, E, F, Fut> CallUndo<'t, T, E> for F
where
    T: 't,
    F: FnOnce(&'t StepKey, Option<&'t T>) -> Fut,
    Fut: Future<Output = Result<(), E>> + Send,
{
    type Future = Fut;

    fn run(self, key: &'t StepKey, result: Option<&'t T>) -> Fut {
        self(key, result)
    }
}
