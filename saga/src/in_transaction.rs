//! The transactions in which a saga starts and in which a reply is kept.

use outbox::{EnqueueError, FailedCall, OutboxTransaction};
use sqlx::Transaction;

use crate::dialect::Dialect;
use crate::error::{Blocked, StoreError};

/// An open transaction: an [`OutboxTransaction`] or a [`sqlx::Transaction`]. Sealed.
///
/// A connection of a pool is not a transaction. There a start would commit separately, whatever
/// happens to the business rows:
///
/// ```compile_fail,E0277
/// # async fn example(pool: sqlx::PgPool, sagas: saga::Sagas<sqlx::Postgres>) -> Result<(), saga::StartError> {
/// let mut connection = pool.acquire().await.expect("a connection");
/// let started = sagas.start(&mut connection, "checkout", "42", &7).await?;
/// # drop(started); Ok(()) }
/// ```
///
/// ```compile_fail,E0277
/// # async fn example(pool: sqlx::PgPool, sagas: saga::Sagas<sqlx::Postgres>) -> Result<(), saga::StartError> {
/// let mut connection = pool.acquire().await.expect("a connection");
/// let started = sagas.start(&mut *connection, "checkout", "42", &7).await?;
/// # drop(started); Ok(()) }
/// ```
///
/// ```compile_fail,E0277
/// # async fn example(pool: sqlx::PgPool, sagas: saga::Sagas<sqlx::Postgres>, key: saga::StepKey) -> Result<(), saga::ReplyError> {
/// let mut connection = pool.acquire().await.expect("a connection");
/// let replied = sagas.reply(&mut connection, &key, &"P-1".into()).await?;
/// # drop(replied); Ok(()) }
/// ```
///
/// Both kinds of transaction compile:
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool, outbox: outbox::Outbox<sqlx::Postgres>, sagas: saga::Sagas<sqlx::Postgres>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = outbox.begin(&pool).await?;
/// let started = sagas.start(&mut tx, "checkout", "42", &7).await?;
/// tx.commit().await?;
/// let mut tx = pool.begin().await?;
/// let again = sagas.start(&mut tx, "checkout", "42", &7).await?;
/// tx.commit().await?;
/// # drop((started, again)); Ok(()) }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transaction",
    note = "begin one with `outbox.begin(&pool)` or `pool.begin()`; on a plain connection, the saga would \
            commit on its own"
)]
pub trait InTransaction<DB: Dialect>: sealed::Sealed<DB> {}

impl<DB: Dialect> InTransaction<DB> for OutboxTransaction<DB> {}
impl<DB: Dialect> InTransaction<DB> for Transaction<'_, DB> {}

/// Refuses if no transaction is open, because the row would commit on its own. On SQLite also
/// refuses a transaction whose commit does not wait for the disk.
pub(crate) async fn check_transaction<DB: Dialect>(connection: &mut DB::Connection) -> Result<(), Blocked> {
    let is_open = DB::is_open(&mut *connection).await;
    if !is_open.map_err(StoreError::during("check its transaction"))? {
        return Err(Blocked::Ended);
    }
    let waits = DB::check_it_waits_for_the_disk(connection).await;
    Ok(waits.map_err(StoreError::during("make the commit wait for the disk"))?)
}

mod sealed {
    use super::{Dialect, EnqueueError, FailedCall, OutboxTransaction, Transaction};

    /// The private part of the trait.
    pub trait Sealed<DB: Dialect>: Send {
        /// Returns the connection of the transaction.
        fn connection(&mut self) -> &mut DB::Connection;

        /// Begins a call that stores rows. Refuses after a failed call, if the transaction
        /// remembers one.
        fn begin_call(&mut self) -> Result<(), EnqueueError>;

        /// Ends a call. If it failed, a transaction that remembers this does not commit.
        fn end_call(&mut self, failed: Option<FailedCall>);
    }

    impl<DB: Dialect> Sealed<DB> for OutboxTransaction<DB> {
        fn connection(&mut self) -> &mut DB::Connection {
            self
        }

        fn begin_call(&mut self) -> Result<(), EnqueueError> {
            Self::begin_call(self)
        }

        fn end_call(&mut self, failed: Option<FailedCall>) {
            self.end_call_of_another_part(failed);
        }
    }

    impl<DB: Dialect> Sealed<DB> for Transaction<'_, DB> {
        fn connection(&mut self) -> &mut DB::Connection {
            self
        }

        fn begin_call(&mut self) -> Result<(), EnqueueError> {
            Ok(())
        }

        fn end_call(&mut self, _: Option<FailedCall>) {}
    }
}
