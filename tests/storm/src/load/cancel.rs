//! Callers that cancel in the middle.

use std::time::Duration;

/// Runs the work, and drops it after this time at any point: in `begin`, in a statement, in
/// `commit`. Returns `None` if it was dropped.
pub(super) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, work).await.ok()
}
