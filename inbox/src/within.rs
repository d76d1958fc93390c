//! Bounds calls to the database: a host that is gone answers nothing, and its connections tell
//! nothing of it for as long as they have nothing to send.
//!
//! A connection that did not answer in time is dropped. The pool closes it when it does not answer
//! the pool either: `outbox::pool_options` has a limit for that.

use std::future::Future;
use std::time::Duration;

use crate::store_error::StoreError;

/// How long a process waits for an answer of the database by default. Admitting a message waits for
/// a racing consumer of the same one, so it is longer than a handler may take.
pub const CALL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(120);
/// The shortest time for which it waits.
pub const CALL_TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// The longest.
pub const CALL_TIMEOUT_MAX: Duration = Duration::from_secs(3_600);

/// How long maintenance may take as a whole: it makes and drops tables, and waits for locks.
pub(crate) const MAINTENANCE_MAX: Duration = Duration::from_secs(1_800);

/// Waits for a call at most so long, then drops it.
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

/// The text of a call that was given up.
pub(crate) fn no_answer(limit: Duration) -> String {
    format!("no answer within {limit:?}: the connection is given up")
}
