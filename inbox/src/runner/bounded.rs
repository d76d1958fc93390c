//! Calls a handler with its two bounds: a timeout, and a guard against panics.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;

use crate::error_text::error_text;
use crate::handler::HandlerError;
use crate::store_error::StoreError;

/// Maximum wait for a statement to be interrupted, and for a transaction to be rolled back.
pub(super) const INTERRUPT_MAX: Duration = Duration::from_secs(5);

type Handled = Result<Option<Vec<u8>>, HandlerError>;

/// The outcome of a call.
pub(super) enum Called {
    /// It ended. A panic is an ordinary failure.
    Ended(Handled),
    /// It did not end in time and was dropped.
    TimedOut(HandlerError),
}

/// Runs a handler up to its timeout. This does not stop a handler that blocks its thread.
pub(super) async fn call(timeout: Duration, handling: impl Future<Output = Handled>) -> Called {
    match tokio::time::timeout(timeout, AssertUnwindSafe(handling).catch_unwind()).await {
        Ok(Ok(result)) => Called::Ended(result),
        Ok(Err(_)) => Called::Ended(Err(HandlerError::retry("the handler panicked"))),
        Err(_) => Called::TimedOut(HandlerError::of_timeout(timeout)),
    }
}

/// How long an interrupted statement may take to end before it is interrupted again.
const INTERRUPT_AGAIN: Duration = Duration::from_millis(100);

/// Interrupts the statement of a handler that timed out until it has ended, or logs why it
/// continues. Repeats the interrupt, because the statement may still be on its way to the database
/// at first.
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
        tracing::warn!("the database did not answer; the statement may still be running");
    }
}
