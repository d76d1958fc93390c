//! Time limits of the inbox's calls to the database ([`outbox::Bounded`] has the reason).

use std::future::Future;
use std::time::Duration;

use outbox::no_answer;

use crate::store_error::StoreError;

/// Default time that a process waits for an answer from the database. Admitting a message waits for
/// a racing consumer of the same message, so the default is longer than a handler may take.
pub(crate) const CALL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(120);

/// Maximum duration of a whole maintenance, which creates and drops tables and waits for locks.
pub(crate) const MAINTENANCE_MAX: Duration = Duration::from_secs(1_800);

/// Waits for a call up to `limit`, then drops it.
pub(crate) async fn within<T, E: From<StoreError>>(
    limit: Duration,
    what: &'static str,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer,
        Err(_) => Err(StoreError::broken(what, no_answer(limit)).into()),
    }
}
