//! Waits for calls to the broker, which an adapter may leave without an answer.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use message::SubscriptionError;
use tokio::time::{Instant, interval_at, timeout};
use tokio_util::sync::CancellationToken;

use crate::runner::status::ConsumerStatus;

/// Maximum duration of a call to the broker. It is longer than the limits of the adapters: a Kafka
/// group whose coordinator hangs in a rebalance answers after some 105 s.
const BROKER_CALL_MAX: Duration = Duration::from_secs(300);

/// Interval at which the status records that the loop waits: a restart would not help.
const STILL_WAITING: Duration = Duration::from_secs(10);

/// Waits for a call to the broker. Returns `None` if the consumer is aborted first. Without an
/// answer in time, the session counts as lost. In both cases the call was cut off, so its
/// subscription must not be used again.
pub(super) async fn answered<T>(
    abort: &CancellationToken,
    status: &ConsumerStatus,
    call: impl Future<Output = Result<T, SubscriptionError>>,
) -> Option<Result<T, SubscriptionError>> {
    match ended(abort, status, call).await {
        CallEnd::Answered(answer) => Some(answer),
        CallEnd::TimedOut(silent) => Some(Err(silent)),
        CallEnd::Aborted => None,
    }
}

/// How a call to the broker ended.
pub(super) enum CallEnd<T> {
    /// With an answer, which may be an error. The subscription can be used.
    Answered(Result<T, SubscriptionError>),
    /// Cut off after [`BROKER_CALL_MAX`], with the error for it.
    TimedOut(SubscriptionError),
    /// Cut off, because the consumer is aborted.
    Aborted,
}

/// Like [`answered`], for a caller that continues after an error of the broker.
pub(super) async fn ended<T>(
    abort: &CancellationToken,
    status: &ConsumerStatus,
    call: impl Future<Output = Result<T, SubscriptionError>>,
) -> CallEnd<T> {
    let _called = Called::begin(status);
    let mut call = pin!(timeout(BROKER_CALL_MAX, call));
    let mut waiting = interval_at(Instant::now() + STILL_WAITING, STILL_WAITING);
    loop {
        tokio::select! {
            biased;
            () = abort.cancelled() => return CallEnd::Aborted,
            answer = &mut call => return answer.map_or_else(|_| CallEnd::TimedOut(silent()), CallEnd::Answered),
            _ = waiting.tick() => status.still_waits(),
        }
    }
}

/// A call that has no answer yet; its drop ends it.
struct Called<'a>(&'a ConsumerStatus);

impl<'a> Called<'a> {
    fn begin(status: &'a ConsumerStatus) -> Self {
        status.calls();
        Self(status)
    }
}

impl Drop for Called<'_> {
    fn drop(&mut self) {
        self.0.answered();
    }
}

fn silent() -> SubscriptionError {
    SubscriptionError::lost(format!("the broker did not answer within {BROKER_CALL_MAX:?}"))
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;
    use crate::ids::ConsumerName;

    #[tokio::test(start_paused = true)]
    async fn a_silent_broker_is_left_by_an_abort_or_in_the_end() {
        let billing = ConsumerName::new("billing").unwrap();
        let status = ConsumerStatus::new(&billing, &std::sync::Arc::default());
        status.turned(true, 1);
        let abort = CancellationToken::new();
        let begun_at = Instant::now();
        let silent = answered(&abort, &status, pending::<Result<(), _>>());
        let error = silent.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("did not answer within 300s"), "{error}");
        assert_eq!(begun_at.elapsed(), BROKER_CALL_MAX);
        assert!(status.is_alive(), "no thread is blocked");
        abort.cancel();
        assert!(answered(&abort, &status, pending::<Result<(), _>>()).await.is_none());
        status.ended();
        status.still_waits();
        assert!(!status.is_alive(), "closing does not bring it back");
    }
}
