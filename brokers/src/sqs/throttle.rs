//! Requests that SQS throttles are sent again, each time a little later.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use tokio::time::Instant;

use super::fault::{Failure, Kind};

/// How long a throttled request is sent again, at most.
pub(super) const THROTTLED_MAX: Duration = Duration::from_secs(30);

/// The first and the maximum pause between tries. Before that, the client has already retried a few
/// times on its own.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The pauses of one request.
pub(super) struct Pauses {
    deadline: Instant,
    next: Duration,
}

impl Pauses {
    /// Begins with the first pause. The last one ends within `max`.
    pub(super) fn new(max: Duration) -> Self {
        Self { deadline: Instant::now() + max, next: PAUSE_MIN }
    }

    /// Waits until the next try; returns false at once if there is no time for it.
    pub(super) async fn wait(&mut self) -> bool {
        let has_time = Instant::now() + self.next < self.deadline;
        if has_time {
            tokio::time::sleep(jittered(self.next)).await;
            self.next = (self.next * 2).min(PAUSE_MAX);
        }
        has_time
    }
}

/// Returns a random part of a pause, between half and all of it, so that requests that were refused
/// together do not come back together.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish();
    pause / 2 + pause.mul_f64((random % 1_000) as f64 / 2_000.0)
}

/// Makes a request, and again while SQS throttles it, for at most `max`.
pub(super) async fn patiently<T, R>(max: Duration, request: impl Fn() -> R) -> Result<T, Failure>
where
    R: Future<Output = Result<T, Failure>>,
{
    let mut pauses = Pauses::new(max);
    loop {
        match request().await {
            Err(failure) if failure.kind == Kind::Throttled && pauses.wait().await => {}
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn throttled() -> Failure {
        Failure::of_code("RequestThrottled", "not so fast", true)
    }

    /// Goal: a consumer's session outlives a moment in which its requests are throttled, and ends
    /// if that lasts. Oracle: the outcome, the tries and the time.
    #[tokio::test(start_paused = true)]
    async fn a_throttled_request_is_made_again_for_a_while() {
        for (throttles, is_ok) in [(0, true), (3, true), (1_000, false)] {
            let (begun_at, tries) = (Instant::now(), Cell::new(0));
            let outcome = patiently(Duration::from_secs(20), || {
                tries.set(tries.get() + 1);
                std::future::ready(if tries.get() > throttles { Ok(()) } else { Err(throttled()) })
            });
            assert_eq!(outcome.await.is_ok(), is_ok, "{throttles} throttles");
            assert!(begun_at.elapsed() <= Duration::from_secs(20) && tries.get() <= 15, "{tries:?}");
        }
        let missing = || std::future::ready(Err::<(), _>(Failure::of_code("QueueDoesNotExist", "", true)));
        let begun_at = Instant::now();
        assert!(patiently(THROTTLED_MAX, missing).await.is_err());
        assert_eq!(begun_at.elapsed(), Duration::ZERO, "no other failure is waited out");
    }
}
