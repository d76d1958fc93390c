//! An error for work without its own error type.

use std::error::Error;

use crate::enqueue_error::EnqueueError;

/// The reason why the work of a transaction failed, for work without its own error type. `?`
/// converts errors of the database and of enqueueing; [`Rollback::because`] gives a business
/// reason.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool, outbox: outbox::Outbox<sqlx::Postgres>, cents: i64) -> Result<(), Box<dyn std::error::Error>> {
/// use outbox::{OutboxTransaction, Rollback, TransactionError};
/// use sqlx::Postgres;
///
/// let placed = outbox.transaction(&pool, async move |tx: &mut OutboxTransaction<Postgres>| {
///     sqlx::query("INSERT INTO orders (cents) VALUES ($1)").bind(cents).execute(&mut **tx).await?;
///     if cents > 100_000 { Err(Rollback::because("over the limit")) } else { Ok(()) }
/// });
/// match placed.await {
///     Ok(()) => println!("placed"),
///     Err(TransactionError::Work(Rollback::Because(reason))) => println!("refused: {reason}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Rollback {
    /// A business reason.
    #[error("{0}")]
    Because(String),
    /// A statement failed. After a conflict with another transaction the work runs again.
    #[error("the database refused a statement")]
    Database(#[from] sqlx::Error),
    /// A message was not enqueued.
    #[error("a message was not enqueued")]
    Enqueue(#[from] EnqueueError),
    /// Any other error. The work runs again only if a conflict is among its causes.
    #[error("the work failed")]
    Other(#[from] Box<dyn Error + Send + Sync>),
}

impl Rollback {
    /// Makes an error with a business reason.
    #[must_use]
    pub fn because(reason: impl Into<String>) -> Self {
        Self::Because(reason.into())
    }
}
