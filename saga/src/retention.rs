//! Forgets sagas that ended long ago.

use message::shield;

use crate::dialect::Dialect;
use crate::error::StoreError;
use crate::sagas::Sagas;

/// Maximum sagas that one statement deletes: it takes a few milliseconds and holds only the rows
/// that it deletes.
pub(crate) const BATCH: u32 = 500;

impl<DB: Dialect> Sagas<DB> {
    /// Deletes sagas that ended longer ago than [`WorkerOptions::retention`](crate::WorkerOptions),
    /// with their steps and replies, 500 at a time. Returns the number of deleted sagas. A running
    /// worker does this once a minute. Afterwards their names are free: a start with one of them is
    /// a new saga.
    ///
    /// # Errors
    /// [`StoreError`]; sagas deleted before the error stay deleted. Runs to its end even if this
    /// call is dropped.
    pub async fn forget(&self) -> Result<u64, StoreError> {
        let sagas = self.clone();
        shield(async move {
            let mut forgotten = 0;
            loop {
                let mut connection = sagas.acquire().await?;
                // The database's clock alone must not decide on a deletion.
                let (retention, until) = (sagas.0.options.retention, sagas.0.clock.now());
                let batch = sagas.0.tables.forget(&mut connection, retention, until);
                let batch = sagas.call("delete ended sagas", batch).await?;
                forgotten += batch;
                if batch < u64::from(BATCH) {
                    return Ok(forgotten);
                }
            }
        })
        .await
    }

    /// Deletes decisions of operators that are older than
    /// [`WorkerOptions::audit_retention`](crate::WorkerOptions), at most 500. Returns how many were
    /// deleted. A running worker does this once a minute. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], also for a role that does not have the right yet.
    pub async fn forget_decisions(&self) -> Result<u64, StoreError> {
        let before = self.0.clock.now() - self.0.options.audit_retention;
        let mut connection = self.acquire().await?;
        let forgetting = self.0.tables.forget_decisions(&mut connection, before, BATCH);
        self.call("delete old decisions about sagas", forgetting).await
    }
}
