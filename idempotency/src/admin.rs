//! The operator's interface to keys: lists stuck keys and decides about them.

use std::num::NonZeroU32;

use message::{InvalidText, shield};
use outbox::{Signature, StoreError};
use uuid::Uuid;

use crate::again::again;
use crate::handle::IdempotencyKeys;
use crate::id::KeyId;
use crate::record::{Action, Decision, StuckKey};
use crate::store::KeyStore;

/// Why a decision about a key was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecideError {
    /// The audit cannot store the actor or the note: it is empty, too long, or contains a NUL
    /// character.
    #[error(transparent)]
    Signature(#[from] InvalidText),
    /// The database refused or is unavailable.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<DB: KeyStore> IdempotencyKeys<DB> {
    /// Returns the keys whose lease has expired and that no caller has taken over, the oldest
    /// expiry first. Keys whose lease ends more than a day ahead come last: no lease lasts that
    /// long, so the database's clock was ahead when it was granted. If the holder is alive, its
    /// next renewal corrects that. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`] when the database refused or is unavailable.
    pub async fn stuck(&self, limit: NonZeroU32) -> Result<Vec<StuckKey>, StoreError> {
        let stuck = self.tables().stuck(self.db(), limit.get()).await;
        stuck.map_err(StoreError::during("list stuck idempotency keys"))
    }

    /// Decides about a stuck key. Returns false if it is not stuck (any longer), or, if `holder` is
    /// given, if another holder has had it since. The audit stores who decided and why; the key
    /// stores who decided. On PostgreSQL the role must own the tables, or have the right to write
    /// `decided_by` and to insert into `idempotency_audit`.
    ///
    /// # Errors
    /// [`DecideError`]. Run it to its end.
    pub async fn decide(
        &self,
        id: &KeyId,
        holder: Option<Uuid>,
        action: Action,
        signature: &Signature,
    ) -> Result<bool, DecideError> {
        signature.check()?;
        let keys = self.clone();
        let id = id.clone();
        let signature = signature.clone();
        let work = async move {
            again(keys.db(), "decide about an idempotency key", || {
                DB::decide(keys.pool(), keys.tables(), &id, holder, action, &signature)
            })
            .await
        };
        Ok(shield(work).await?)
    }

    /// Returns the decisions, the latest first. Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`] when the database refused or is unavailable.
    pub async fn decisions(&self, limit: NonZeroU32) -> Result<Vec<Decision>, StoreError> {
        self.decisions_before(i64::MAX, limit).await
    }

    /// Returns the decisions with numbers below `before`, the latest first. Cancel-safe.
    ///
    /// # Errors
    /// As for [`decisions`](Self::decisions).
    pub async fn decisions_before(
        &self,
        before: i64,
        limit: NonZeroU32,
    ) -> Result<Vec<Decision>, StoreError> {
        let decisions = self.tables().decisions(self.pool(), before, limit.get());
        self.db().call(decisions).await.map_err(StoreError::during("list decisions about idempotency keys"))
    }
}
