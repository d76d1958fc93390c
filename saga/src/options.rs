//! Settings of a worker.

use std::num::NonZeroU32;
use std::time::Duration;

use message::{Backoff, OutOfBounds, finite};
use outbox::{
    AUDIT_RETENTION_DEFAULT, AUDIT_RETENTION_MAX, AUDIT_RETENTION_MIN, CALL_TIMEOUT_MAX, CALL_TIMEOUT_MIN,
};

use crate::error::OpenError;

/// The shortest lease.
const LEASE_MIN: Duration = Duration::from_secs(1);
/// The longest lease, and so the longest wait for a worker that died.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(3_600);
/// The longest pause between two attempts.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(86_400);
/// The shortest pause between two polls of the database.
pub(crate) const POLL_MIN: Duration = Duration::from_millis(2);
/// The longest span of time that is stored: a century.
pub const SPAN_MAX: Duration = Duration::from_secs(36_525 * 86_400);

/// Settings of a worker. [`SagasBuilder::open`](crate::SagasBuilder::open) refuses values out of
/// bounds.
///
/// ```
/// use std::time::Duration;
/// let options = saga::WorkerOptions::default().lease(Duration::from_secs(30)).attempts_max(1_000);
/// # assert_eq!(options.attempts_max, 1_000);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorkerOptions {
    /// Maximum sagas that run at once in this process. Default: 16. Each uses a connection of the
    /// pool while a step with an effect in this database runs. The number of these steps at once is
    /// the pool's number of connections minus two; further steps wait. The two connections are for
    /// renewing leases and for short statements.
    pub concurrency: NonZeroU32,
    /// How long a dead or hanging worker keeps its sagas: 1 s to 1 h. Default: 15 s. A live worker
    /// renews its leases after each third of this time.
    pub lease: Duration,
    /// Longest pause between two polls while there is no work: 2 ms to 24 h. Default: 100 ms.
    pub poll_max: Duration,
    /// Consecutive failures of one step, or of one undo, after which a saga is stuck; at least 1.
    /// Default: 10. The death of a worker counts as a failure. So does an outage of the sagas'
    /// database, if it lasts longer than the lease. Failures of these two kinds make a saga stuck
    /// no earlier than the tenth. A higher limit allows a saga to end as many workers.
    pub attempts_max: u32,
    /// Pauses between these attempts, up to 24 h. Default: 1 s, doubled up to 5 min, with full
    /// jitter.
    pub backoff: Backoff,
    /// How long a saga that has ended is remembered; up to a century. Default: 14 days.
    pub retention: Duration,
    /// How long decisions of operators are kept: 31 days to a century. Default: three years.
    pub audit_retention: Duration,
    /// How long a call to the database may take: 1 s to 1 h. Default: 30 s. Then the connection is
    /// dropped and the work is retried. Where a transaction begins, the limit applies separately to
    /// waiting for the connection and to BEGIN. It does not bound the statements of a step: those
    /// are abandoned when the lease has been over for this time.
    pub call_timeout: Duration,
    /// How long a stopping worker waits for its sagas to reach their next step. Default: 20 s.
    /// [`Duration::MAX`]: as long as their steps take.
    pub shutdown_grace: Duration,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            concurrency: const { NonZeroU32::new(16).unwrap() },
            lease: Duration::from_secs(15),
            poll_max: Duration::from_millis(100),
            attempts_max: 10,
            backoff: Backoff::MESSAGES,
            retention: Duration::from_secs(14 * 86_400),
            audit_retention: AUDIT_RETENTION_DEFAULT,
            call_timeout: Duration::from_secs(30),
            shutdown_grace: Duration::from_secs(20),
        }
    }
}

impl WorkerOptions {
    message::setters! {
        /// Sets how many sagas run at once in this process.
        concurrency: NonZeroU32,
        /// Sets how long a worker that died keeps its sagas.
        lease: Duration,
        /// Sets the longest pause between two polls for work.
        poll_max: Duration,
        /// Sets the number of consecutive failures after which a saga is stuck.
        attempts_max: u32,
        /// Sets the pauses between attempts.
        backoff: Backoff,
        /// Sets how long a saga that has ended is remembered.
        retention: Duration,
        /// Sets how long decisions of operators are kept.
        audit_retention: Duration,
        /// Sets how long a call to the database may take.
        call_timeout: Duration,
        /// Sets how long a stopping worker waits for its sagas.
        shutdown_grace: Duration,
    }

    /// Checks the bounds, and makes every time one that can be added to a clock.
    pub(crate) fn checked(self) -> Result<Self, OpenError> {
        let audit = AUDIT_RETENTION_MIN..=AUDIT_RETENTION_MAX;
        OutOfBounds::check("lease", self.lease, LEASE_MIN..=LEASE_MAX)?;
        OutOfBounds::check("longest pause between polls", self.poll_max, POLL_MIN..=PAUSE_MAX)?;
        OutOfBounds::check("call timeout", self.call_timeout, CALL_TIMEOUT_MIN..=CALL_TIMEOUT_MAX)?;
        OutOfBounds::check("longest pause between attempts", self.backoff.max, Duration::ZERO..=PAUSE_MAX)?;
        OutOfBounds::check("retention", self.retention, Duration::ZERO..=SPAN_MAX)?;
        OutOfBounds::check("audit retention", self.audit_retention, audit)?;
        if self.attempts_max == 0 {
            return Err(OpenError::NoAttempts);
        }
        Ok(Self { shutdown_grace: finite(self.shutdown_grace), ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    /// A stop adds it to the clock; if that panicked, all steps would be cut off in the middle.
    #[test]
    fn a_stop_may_wait_without_a_limit() {
        let options = WorkerOptions::default().shutdown_grace(Duration::MAX).checked().unwrap();
        assert!(Instant::now().checked_add(options.shutdown_grace).is_some());
    }

    #[test]
    fn values_out_of_bounds_are_refused_with_their_bounds() {
        let [none, day] = [Duration::ZERO, Duration::from_secs(86_400)];
        let default = WorkerOptions::default;
        let fast = |max| Backoff { first: none, max };
        for fine in [
            default(),
            default().lease(LEASE_MIN).poll_max(POLL_MIN).retention(none).attempts_max(1).backoff(fast(none)),
            default().lease(LEASE_MAX).poll_max(day).retention(SPAN_MAX).backoff(fast(day)),
        ] {
            fine.checked().unwrap();
        }
        for (wrong, text) in [
            (default().lease(day), "the lease is 1d; choose 1s to 1h"),
            (default().poll_max(none), "the longest pause between polls is 0s; choose 2ms to 1d"),
            (default().call_timeout(day), "the call timeout is 1d; choose 1s to 1h"),
            (default().backoff(fast(2 * day)), "the longest pause between attempts is 2d; choose 0s to 1d"),
            (default().retention(2 * SPAN_MAX), "the retention is 73050d; choose 0s to 36525d"),
            (default().audit_retention(day), "the audit retention is 1d; choose 31d to 36525d"),
            (default().attempts_max(0), "the maximum number of attempts is 0; choose at least 1"),
        ] {
            assert_eq!(wrong.checked().unwrap_err().to_string(), text);
        }
    }
}
