//! Signs that a transaction has ended before its handle.
//!
//! A `begin()` inside a transaction (a savepoint) that is dropped before its answer, or that the
//! database refuses, makes sqlx end the *outer* transaction. Its handle stays usable, each later
//! statement commits separately, and `commit()` succeeds. A ROLLBACK or COMMIT that is written as
//! SQL does the same on the server, and the client does not notice.
//!
//! Some rows are true only together with the transaction's other rows. Code that stores such a row
//! checks two signs: the client believes that it is inside a transaction ([`Backend::is_open`]),
//! and the mark that was set with BEGIN is still there ([`Backend::is_marked`], or a condition in
//! the statement itself). The inbox and the idempotency keys have their own marks, which contain
//! more.
//!
//! [`Backend::is_open`]: crate::Backend::is_open
//! [`Backend::is_marked`]: crate::Backend::is_marked

use sqlx::Transaction;

use crate::backend::Backend;

/// The reason that is reported for a transaction that is over.
pub const ENDED: &str = "the transaction has already ended, so later statements would commit on their own: a begin() \
    inside it was refused or was dropped before it was answered, or SQL ended it with COMMIT or ROLLBACK";

/// Rolls back a transaction. Succeeds if an SQL statement has already ended it. Not cancel-safe.
///
/// # Errors
/// The database refused or is unavailable.
#[doc(hidden)]
pub async fn roll_back<DB: Backend>(tx: Transaction<'_, DB>) -> Result<(), sqlx::Error> {
    match tx.rollback().await {
        Err(error) if DB::was_over(&error) => Ok(()),
        done => done,
    }
}

/// Sets the mark on PostgreSQL. It comes before BEGIN, in the message that begins the transaction.
pub const MARK: &str = "SET LOCAL outbox.transaction = 'own'";
