//! The stop condition of a consumer that ends once its work is done.

use std::time::Duration;

use sqlx::PgPool;

/// Completes when a query counts as many rows as expected. A service that keeps running uses
/// `shutdown_signal()` instead.
pub async fn until(pool: PgPool, count: &'static str, expected: i64) {
    let counted = async || sqlx::query_scalar::<_, i64>(count).fetch_one(&pool).await.unwrap_or_default();
    while counted().await < expected {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
