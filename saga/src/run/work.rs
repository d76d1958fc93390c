//! The work of steps and undos, as closures. These traits are implemented for every closure of
//! their form. They promise that the futures can be sent to another thread, which async closures
//! alone do not.

use std::future::Future;

use outbox::OutboxTransaction;

use crate::dialect::Dialect;
use crate::stop::StepError;

/// The effect of a step: `async |tx| { … }` with an [`OutboxTransaction`].
pub trait StepWork<'t, DB: Dialect, T> {
    /// Its future.
    type Future: Future<Output = Result<T, StepError>> + Send;
    /// Begins the work.
    fn run(self, tx: &'t mut OutboxTransaction<DB>) -> Self::Future;
}

impl<'t, DB, T, F, Fut> StepWork<'t, DB, T> for F
where
    DB: Dialect,
    F: FnOnce(&'t mut OutboxTransaction<DB>) -> Fut,
    Fut: Future<Output = Result<T, StepError>> + Send,
{
    type Future = Fut;

    fn run(self, tx: &'t mut OutboxTransaction<DB>) -> Fut {
        self(tx)
    }
}

/// The effect of a call: `async |key| { … }`.
pub trait CallWork<T> {
    /// Its future.
    type Future: Future<Output = Result<T, StepError>> + Send;
    /// Begins the work.
    fn run(self, key: String) -> Self::Future;
}

impl<T, F, Fut> CallWork<T> for F
where
    F: FnOnce(String) -> Fut,
    Fut: Future<Output = Result<T, StepError>> + Send,
{
    type Future = Fut;

    fn run(self, key: String) -> Fut {
        self(key)
    }
}

/// The undo of a step: `async |tx, result: &T| { … }`.
pub trait StepUndo<'t, DB: Dialect, T: 't> {
    /// Its future.
    type Future: Future<Output = Result<(), StepError>> + Send;
    /// Begins the undo.
    fn run(self, tx: &'t mut OutboxTransaction<DB>, result: &'t T) -> Self::Future;
}

impl<'t, DB, T, F, Fut> StepUndo<'t, DB, T> for F
where
    DB: Dialect,
    T: 't,
    F: FnOnce(&'t mut OutboxTransaction<DB>, &'t T) -> Fut,
    Fut: Future<Output = Result<(), StepError>> + Send,
{
    type Future = Fut;

    fn run(self, tx: &'t mut OutboxTransaction<DB>, result: &'t T) -> Fut {
        self(tx, result)
    }
}

/// The undo of a request: `async |tx, reply: Option<&T>| { … }`.
pub trait TxUndo<'t, DB: Dialect, T: 't> {
    /// Its future.
    type Future: Future<Output = Result<(), StepError>> + Send;
    /// Begins the undo.
    fn run(self, tx: &'t mut OutboxTransaction<DB>, reply: Option<&'t T>) -> Self::Future;
}

impl<'t, DB, T, F, Fut> TxUndo<'t, DB, T> for F
where
    DB: Dialect,
    T: 't,
    F: FnOnce(&'t mut OutboxTransaction<DB>, Option<&'t T>) -> Fut,
    Fut: Future<Output = Result<(), StepError>> + Send,
{
    type Future = Fut;

    fn run(self, tx: &'t mut OutboxTransaction<DB>, reply: Option<&'t T>) -> Fut {
        self(tx, reply)
    }
}

/// The undo of a call: `async |key, result: Option<&T>| { … }`.
pub trait CallUndo<'t, T: 't> {
    /// Its future.
    type Future: Future<Output = Result<(), StepError>> + Send;
    /// Begins the undo.
    fn run(self, key: String, result: Option<&'t T>) -> Self::Future;
}

impl<'t, T, F, Fut> CallUndo<'t, T> for F
where
    T: 't,
    F: FnOnce(String, Option<&'t T>) -> Fut,
    Fut: Future<Output = Result<(), StepError>> + Send,
{
    type Future = Fut;

    fn run(self, key: String, result: Option<&'t T>) -> Fut {
        self(key, result)
    }
}
