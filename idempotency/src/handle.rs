//! The handle to the table of idempotency keys.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use message::{SteadyClock, back};
use outbox::{Bounded, Outbox};
use sqlx::Pool;
use time::OffsetDateTime;
use tokio_util::task::AbortOnDropHandle;

use crate::store::{KeyStore, KeyTables};

/// The handle to the table in one database that remembers which requests have run. Cheap to clone.
/// While a handle exists, it [maintains](Self::maintain) the table in the background.
pub struct IdempotencyKeys<DB: KeyStore> {
    pub(crate) inner: Arc<Inner<DB>>,
    /// The outbox with which its transactions enqueue.
    outbox: Option<Outbox<DB>>,
}

pub(crate) struct Inner<DB: KeyStore> {
    pub(crate) db: Bounded<DB>,
    /// The second clock, by which a key must also have expired.
    pub(crate) clock: SteadyClock,
    pub(crate) tables: KeyTables<DB>,
    pub(crate) retention: Duration,
    pub(crate) audit_retention: Duration,
    #[cfg(feature = "http")]
    pub(crate) waiters: Arc<crate::http::waiting::Waiters>,
    /// Ends with the last handle.
    #[expect(dead_code, reason = "its drop ends the task")]
    pub(crate) maintenance: AbortOnDropHandle<()>,
}

impl<DB: KeyStore> IdempotencyKeys<DB> {
    pub(crate) fn of(inner: Arc<Inner<DB>>) -> Self {
        Self { inner, outbox: None }
    }

    /// Returns these keys with an outbox, whose tables are in the same database: the transactions
    /// of [`begin`](Self::begin) and of the HTTP layer enqueue with it. Without one, they refuse to
    /// enqueue ([`EnqueueError::NoOutbox`](outbox::EnqueueError::NoOutbox)).
    #[must_use]
    pub fn with_outbox(self, outbox: Outbox<DB>) -> Self {
        Self { outbox: Some(outbox), ..self }
    }

    pub(crate) fn outbox(&self) -> Option<&Outbox<DB>> {
        self.outbox.as_ref()
    }

    /// Returns the pool of the database that has its table.
    #[must_use]
    pub fn pool(&self) -> &Pool<DB> {
        self.inner.db.pool()
    }

    /// Returns how many requests of this process wait now for the outcome of another one
    /// ([`wait_max`](crate::http::IdempotencyLayer::wait_max)).
    #[cfg(feature = "http")]
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.inner.waiters.count()
    }

    pub(crate) fn db(&self) -> &Bounded<DB> {
        &self.inner.db
    }

    /// Returns the time up to which keys may be forgotten, if they have also expired by the
    /// database's clock.
    pub(crate) fn forgets_until(&self) -> OffsetDateTime {
        self.inner.clock.now()
    }

    /// Returns the time before which decisions are forgotten.
    pub(crate) fn forgets_decisions_before(&self) -> OffsetDateTime {
        back(self.inner.clock.now(), self.inner.audit_retention)
    }

    pub(crate) fn tables(&self) -> &KeyTables<DB> {
        &self.inner.tables
    }
}

impl<DB: KeyStore> Clone for IdempotencyKeys<DB> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), outbox: self.outbox.clone() }
    }
}

impl<DB: KeyStore> fmt::Debug for IdempotencyKeys<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyKeys").field("retention", &self.inner.retention).finish_non_exhaustive()
    }
}
