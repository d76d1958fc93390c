//! Forgets expired keys and reports expired leases, without waiting for the next claim.

use std::sync::Weak;
use std::time::Duration;

use message::{jittered, shield};
use outbox::StoreError;
use tokio_util::task::AbortOnDropHandle;

use crate::handle::{IdempotencyKeys, Inner};
use crate::options::OnExpired;
use crate::store::KeyStore;
use crate::telemetry;

/// Rows per statement. It takes a few milliseconds and locks only the rows that it deletes.
const BATCH: u32 = 1_000;

/// Counts of what [`IdempotencyKeys::maintain`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Maintained {
    /// Expired keys that were deleted.
    pub forgotten: u64,
    /// Leases whose expiry was reported.
    pub leases_expired: u64,
}

impl<DB: KeyStore> IdempotencyKeys<DB> {
    /// Deletes expired keys, a thousand rows at a time. Reports every lease that has expired since
    /// the last call: a log line with key, holder and policy, and a count. A key in progress is
    /// also deleted when its lease has expired, unless it waits for an operator. An open handle
    /// calls this automatically
    /// ([`KeyOptions::maintain_every`](crate::KeyOptions::maintain_every)). Any number of processes
    /// may run it at once. It blocks only a request that takes over an expired key of the current
    /// batch.
    ///
    /// # Errors
    /// [`StoreError`]; the work done before it stays done.
    pub async fn maintain(&self) -> Result<Maintained, StoreError> {
        let keys = self.clone();
        shield(async move { keys.maintain_now().await }).await
    }

    async fn maintain_now(&self) -> Result<Maintained, StoreError> {
        let mut done = Maintained::default();
        loop {
            let expired = self.tables().report(self.db(), BATCH).await;
            let expired = expired.map_err(StoreError::during("find expired leases"))?;
            for key in &expired {
                let id = &key.id;
                let holder = key.holder;
                let attempt = key.attempt;
                match key.on_expired {
                    OnExpired::Refuse => tracing::warn!(
                        key = %id, %holder, attempt,
                        "the holder of an idempotency key has disappeared, and an operator has to decide: \
                         see `relay keys list`"
                    ),
                    OnExpired::TakeOver => tracing::info!(
                        key = %id, %holder, attempt,
                        "the holder of an idempotency key has disappeared; the next request with the key runs"
                    ),
                }
                telemetry::lease_expired(id.operation(), key.on_expired);
            }
            done.leases_expired += expired.len() as u64;
            if expired.len() < BATCH as usize {
                break;
            }
        }
        loop {
            let forgotten = self.tables().forget(self.pool(), self.forgets_until(), BATCH);
            let forgotten = self
                .db()
                .call(forgotten)
                .await
                .map_err(StoreError::during("delete expired idempotency keys"))?;
            telemetry::forgotten(forgotten);
            done.forgotten += forgotten;
            if forgotten < u64::from(BATCH) {
                break;
            }
        }
        self.forget_decisions().await;
        Ok(done)
    }

    /// Forgets one batch of decisions; the next maintenance continues. Ignores failures, because a
    /// role may lack the right to do it.
    async fn forget_decisions(&self) {
        let before = self.forgets_decisions_before();
        let forgetting = self.tables().forget_decisions(self.pool(), before, BATCH);
        if let Err(error) = self.db().call(forgetting).await {
            tracing::debug!(%error, "could not delete old decisions about idempotency keys");
        }
    }
}

/// Maintains the table until the last handle is dropped. The interval has jitter, so that processes
/// that were started together do not run in step.
pub(crate) fn spawn<DB: KeyStore>(keys: Weak<Inner<DB>>, every: Duration) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            tokio::time::sleep(jittered(every, rand::random())).await;
            let Some(keys) = keys.upgrade().map(IdempotencyKeys::of) else { return };
            if let Err(error) = keys.maintain().await {
                tracing::warn!(%error, "maintenance of idempotency keys failed; the next pass tries again");
            }
        }
    }))
}
