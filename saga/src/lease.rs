//! How long a worker may rely on holding a saga, by its own clock.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The moment after which another worker may have the saga. It is noted before the database is
/// asked, so it is never later than the database's.
#[derive(Debug, Clone)]
pub(crate) struct Lease(Arc<Mutex<Instant>>);

impl Lease {
    pub(crate) fn granted(asked_at: Instant, lease: Duration) -> Self {
        Self(Arc::new(Mutex::new(asked_at + lease)))
    }

    pub(crate) fn renewed(&self, asked_at: Instant, lease: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = asked_at + lease;
    }

    pub(crate) fn is_valid(&self) -> bool {
        Instant::now() < self.until()
    }

    /// Waits until it has been over for so long.
    pub(crate) async fn over_for(&self, span: Duration) {
        while Instant::now() < self.until() + span {
            tokio::time::sleep_until(self.until() + span).await;
        }
    }

    fn until(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
