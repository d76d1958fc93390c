//! Tracks how long a worker may rely on holding a saga, by its own clock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The time after which another worker may have the saga. It is computed from a time before the
/// request to the database, so it is never later than the database's.
#[derive(Debug, Clone)]
pub(crate) struct Lease(Arc<Mutex<Span>>);

#[derive(Debug, Clone, Copy)]
struct Span {
    until: Instant,
    /// When the database last did not answer a renewal.
    unanswered_at: Option<Instant>,
}

impl Lease {
    pub(crate) fn granted(asked_at: Instant, lease: Duration) -> Self {
        Self(Arc::new(Mutex::new(Span { until: asked_at + lease, unanswered_at: None })))
    }

    pub(crate) fn renewed(&self, asked_at: Instant, lease: Duration) {
        self.lock().until = asked_at + lease;
    }

    /// Records that a renewal got no answer. Statements that began before may then wait forever,
    /// even if a new connection renews the lease in time.
    pub(crate) fn unanswered(&self) {
        self.lock().unanswered_at = Some(Instant::now());
    }

    pub(crate) fn is_valid(&self) -> bool {
        Instant::now() < self.lock().until
    }

    /// Waits until statements that began at `begun_at` must be abandoned: the lease has been over
    /// for `span`, or a renewal has been unanswered for that long.
    pub(crate) async fn given_up(&self, begun_at: Instant, span: Duration) {
        loop {
            let Span { until, unanswered_at } = *self.lock();
            let silent = unanswered_at.filter(|at| *at >= begun_at).unwrap_or(until);
            let (now, end) = (Instant::now(), until.min(silent) + span);
            if now >= end {
                return;
            }
            // Meanwhile a renewal may go unanswered.
            tokio::time::sleep_until(end.min(now + span)).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Span> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn statements_are_given_up_when_the_database_was_silent_after_they_began() {
        let (begun_at, lease) = (Instant::now(), Lease::granted(Instant::now(), 60 * SECOND));
        tokio::time::advance(10 * SECOND).await;
        lease.unanswered();
        let later = Instant::now() + SECOND;
        lease.given_up(begun_at, 5 * SECOND).await;
        assert_eq!(begun_at.elapsed().as_secs(), 15);
        lease.given_up(later, 5 * SECOND).await;
        assert_eq!(begun_at.elapsed().as_secs(), 65, "a later statement has until the lease is over");
    }
}
