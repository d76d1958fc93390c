//! Extensions of the request that the layer passes to the handler.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use outbox::OutboxTransaction;
use tokio::sync::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use crate::{KeyId, KeyStore, KeyTransaction};

/// The open transaction in which the key, business rows, messages and the stored response commit
/// together. In axum: `Extension(held): Extension<HeldTransaction<Postgres>>`, then `let mut tx =
/// held.lock().await?;`. Run statements on `&mut **tx`, and enqueue with `tx.enqueue(..)`, for
/// which the keys need an [outbox](crate::IdempotencyKeys::with_outbox).
///
/// After an enqueue that failed, the layer rolls back, even if the handler has swallowed the error:
/// the client gets an error instead of the handler's answer, and nothing is stored under the key.
/// An answer that reports no effect (4xx by default) is stored as usual.
///
/// The layer commits after the handler has answered, and only if the handler has dropped every
/// guard. When the route does not require a key, a request without one gets the same kind of
/// transaction without a key.
#[derive(Debug)]
pub struct HeldTransaction<DB: KeyStore>(Arc<Mutex<Option<Held<DB>>>>);

/// A transaction, with or without a key.
#[derive(Debug)]
pub(super) enum Held<DB: KeyStore> {
    Keyed(Box<KeyTransaction<DB>>),
    Plain(Box<OutboxTransaction<DB>>),
}

/// The error of a handler that was too late: it has answered, and the transaction has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the transaction has ended, because the handler had answered; finish its work before answering")]
pub struct TransactionGone;

impl<DB: KeyStore> HeldTransaction<DB> {
    pub(super) fn new(held: Held<DB>) -> Self {
        Self(Arc::new(Mutex::new(Some(held))))
    }

    /// Locks the transaction for one piece of work. Drop the guard before answering.
    ///
    /// # Errors
    /// [`TransactionGone`] in work that outlives its handler.
    pub async fn lock(&self) -> Result<HeldGuard<'_, DB>, TransactionGone> {
        let guard = self.0.lock().await;
        if guard.is_some() { Ok(HeldGuard(guard)) } else { Err(TransactionGone) }
    }

    /// Takes the transaction away from the handler; `None` while it is still in use.
    pub(super) fn take(&self) -> Option<Held<DB>> {
        self.0.try_lock().ok()?.take()
    }
}

impl<DB: KeyStore> Clone for HeldTransaction<DB> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// A guard of the transaction. It derefs to the [`OutboxTransaction`].
#[derive(Debug)]
pub struct HeldGuard<'a, DB: KeyStore>(MutexGuard<'a, Option<Held<DB>>>);

const THERE: &str = "a guard exists only for a transaction that is present";

impl<DB: KeyStore> Deref for HeldGuard<'_, DB> {
    type Target = OutboxTransaction<DB>;

    #[expect(
        clippy::expect_used,
        reason = "lock() has checked, and only the layer takes it, under the same lock"
    )]
    fn deref(&self) -> &Self::Target {
        match self.0.as_ref().expect(THERE) {
            Held::Keyed(tx) => tx,
            Held::Plain(tx) => tx,
        }
    }
}

impl<DB: KeyStore> DerefMut for HeldGuard<'_, DB> {
    #[expect(
        clippy::expect_used,
        reason = "lock() has checked, and only the layer takes it, under the same lock"
    )]
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self.0.as_mut().expect(THERE) {
            Held::Keyed(tx) => tx,
            Held::Plain(tx) => tx,
        }
    }
}

/// The key that the layer holds on lease while the handler runs. Pass [`KeyId::downstream`] to the
/// services that have the effect, because the handler may run again with the same key.
///
/// If keys are optional, use `Extension<Option<LeasedKey>>`: `None` is a request without a key.
#[derive(Debug, Clone)]
pub struct LeasedKey {
    /// The key.
    pub id: KeyId,
    /// The number of this attempt, from 1; greater than that of every earlier holder.
    pub attempt: u32,
    pub(super) lost: CancellationToken,
}

impl LeasedKey {
    /// Returns whether another caller has the key, or may have it because the lease was not renewed
    /// in time. Then begin nothing that a second holder may have begun as well.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    /// Waits until the lease is [lost](Self::is_lost): for `select!` beside the work. Otherwise it
    /// never completes. Cancel-safe.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }
}
