//! The end of a consuming service that stops by itself when its work is done.

use std::time::Duration;

use sqlx::PgPool;

/// Ends when a query counts as many as are expected. A service that runs on ends with
/// `shutdown_signal()` instead.
pub async fn until(pool: PgPool, count: &'static str, expected: i64) {
    let counted = async || sqlx::query_scalar::<_, i64>(count).fetch_one(&pool).await.unwrap_or_default();
    while counted().await < expected {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
