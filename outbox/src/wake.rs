//! The hint that something was committed.

use std::sync::Arc;

use tokio::sync::Notify;

/// Tells a relay in the same process that it need not wait for its next poll. Cloning shares it. A
/// lost hint costs a poll interval, nothing else.
#[derive(Debug, Clone, Default)]
pub struct CommitNotify(Arc<Notify>);

impl CommitNotify {
    /// A hint nobody listens to yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Something was committed. Cheap; any number of calls before the listener looks count as one.
    pub fn wake(&self) {
        self.0.notify_one();
    }

    /// Returns the notification that a relay waits for.
    #[must_use]
    pub fn notify(&self) -> Arc<Notify> {
        Arc::clone(&self.0)
    }
}
