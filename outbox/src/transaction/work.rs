//! The work of a transaction, as a closure.

use crate::dialect::Dialect;
use crate::transaction::wrapper::OutboxTransaction;

/// The work of a transaction: `async move |tx: &mut OutboxTransaction<_>| { … }`, or any function
/// that takes the transaction and returns a `Send` future. Implemented for all of these.
///
/// It cannot be an `AsyncFn`, which does not promise a `Send` future. A transaction may finish in a
/// separate task.
pub trait Work<'t, DB: Dialect, T, E> {
    /// The future of the work.
    type Future: Future<Output = Result<T, E>> + Send + 't;

    /// Begins the work.
    fn run(self, tx: &'t mut OutboxTransaction<DB>) -> Self::Future;
}

impl<'t, DB, T, E, F, Fut> Work<'t, DB, T, E> for F
where
    DB: Dialect,
    F: FnOnce(&'t mut OutboxTransaction<DB>) -> Fut,
    Fut: Future<Output = Result<T, E>> + Send + 't,
{
    type Future = Fut;

    fn run(self, tx: &'t mut OutboxTransaction<DB>) -> Fut {
        self(tx)
    }
}
