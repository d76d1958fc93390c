//! A hint that a transaction has committed.

use std::sync::Arc;

use tokio::sync::Notify;

/// Wakes a relay in the same process before its next poll. Clones share the hint. A lost hint only
/// costs one poll interval.
#[derive(Debug, Clone, Default)]
pub struct CommitNotify(Arc<Notify>);

impl CommitNotify {
    /// Makes a hint without a listener.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reports a commit. Cheap. Several calls before the listener wakes count as one.
    pub fn wake(&self) {
        self.0.notify_one();
    }

    /// Returns the notification that a relay waits for.
    #[must_use]
    pub fn notify(&self) -> Arc<Notify> {
        Arc::clone(&self.0)
    }
}
