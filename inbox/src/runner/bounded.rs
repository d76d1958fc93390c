//! A handler's call with its two bounds: its time, and its panics.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;

use crate::handler::HandlerError;

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
