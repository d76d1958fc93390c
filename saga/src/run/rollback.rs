//! The rollback of a step or an undo that failed.

use outbox::{EnqueueError, OutboxTransaction};
use sqlx::Connection as _;

use crate::dialect::Dialect;
use crate::stop::{Next, StepError};

/// Rolls back the transaction of a failed step. After an outage its session drops its prepared
/// statements: they may be the cause, and the next run may get the same session.
pub(super) async fn roll_back<DB: Dialect>(
    mut tx: OutboxTransaction<DB>,
    error: &StepError,
) -> Result<(), EnqueueError> {
    if error.next == Next::Outage {
        tx.clear_cached_statements().await?;
    }
    tx.rollback().await
}
