//! A handler's call with its two bounds: its time, and its panics.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;

use crate::attempts::error_text;
use crate::handler::HandlerError;
use crate::store_error::StoreError;

/// How long a statement may take to be interrupted, and a transaction to be rolled back, before
/// nobody waits any more.
pub(super) const INTERRUPT_MAX: Duration = Duration::from_secs(5);

type Handled = Result<Option<Vec<u8>>, HandlerError>;

/// The outcome of a call.
pub(super) enum Called {
    /// It ended; a panic is a failure like any other.
    Ended(Handled),
    /// It did not end in time and was dropped.
    TimedOut(HandlerError),
}

/// Runs a handler for as long as it may take. A handler that blocks its thread is not ended by
/// this.
pub(super) async fn call(timeout: Duration, handling: impl Future<Output = Handled>) -> Called {
    match tokio::time::timeout(timeout, AssertUnwindSafe(handling).catch_unwind()).await {
        Ok(Ok(result)) => Called::Ended(result),
        Ok(Err(_)) => Called::Ended(Err(HandlerError::retry("the handler panicked"))),
        Err(_) => Called::TimedOut(HandlerError::of_timeout(timeout)),
    }
}

/// How long a statement that was interrupted may take to end before it is interrupted once more.
const INTERRUPT_AGAIN: Duration = Duration::from_millis(100);

/// Interrupts the statement of a handler that timed out until it has ended, or says why it goes on.
/// More than once: a statement may be on its way to the database when the first one comes.
pub(super) async fn interrupt<F>(interrupt: impl Fn() -> F, ended: impl Future<Output = ()>)
where
    F: Future<Output = Result<(), StoreError>>,
{
    let mut ended = pin!(ended);
    let interrupted = async {
        loop {
            if let Err(error) = interrupt().await {
                tracing::warn!(error = error_text(&error), "a statement was not interrupted");
            }
            if tokio::time::timeout(INTERRUPT_AGAIN, &mut ended).await.is_ok() {
                return;
            }
        }
    };
    if tokio::time::timeout(INTERRUPT_MAX, interrupted).await.is_err() {
        tracing::warn!("the database did not answer: the statement goes on");
    }
}
