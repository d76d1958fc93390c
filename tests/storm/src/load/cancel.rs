//! Callers that go away in the middle.

use std::time::Duration;

/// Drops the work when it takes longer, wherever it is: in `begin`, in a statement, in `commit`.
pub(super) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, work).await.ok()
}
