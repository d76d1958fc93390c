//! How a transaction that lost against another one is tried again.

use std::time::Duration;

/// How [`Outbox::transaction`](crate::Outbox::transaction) tries again after a serialization
/// failure, a deadlock or a busy database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// Attempts altogether; at least one is made. Default: 8.
    pub attempts_max: u32,
    /// The longest wait before the second attempt; it doubles for each further one. Default: 10 ms.
    pub delay_base: Duration,
    /// The longest wait. Default: 1 s.
    pub delay_max: Duration,
    /// How long to ask what became of an unknown commit. Default: 30 s.
    pub resolve_timeout: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts_max: 8,
            delay_base: Duration::from_millis(10),
            delay_max: Duration::from_secs(1),
            resolve_timeout: Duration::from_secs(30),
        }
    }
}

impl RetryPolicy {
    /// Sets how many attempts are made altogether.
    #[must_use]
    pub fn attempts_max(mut self, attempts: u32) -> Self {
        self.attempts_max = attempts;
        self
    }

    /// Sets how long to ask what became of an unknown commit.
    #[must_use]
    pub fn resolve_timeout(mut self, limit: Duration) -> Self {
        self.resolve_timeout = limit;
        self
    }

    /// The wait after attempt number `attempt` (1, 2, …): a share between 0 and 1 of the longest
    /// one. Full jitter: those who collided do not meet again.
    pub(crate) fn delay(&self, attempt: u32, share: f64) -> Duration {
        let longest = self.delay_base.saturating_mul(2_u32.saturating_pow(attempt.saturating_sub(1)));
        longest.min(self.delay_max).mul_f64(share.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_their_limit() {
        let policy = RetryPolicy::default();
        let longest = |attempt| policy.delay(attempt, 1.0).as_millis();
        assert_eq!([longest(1), longest(2), longest(3), longest(20)], [10, 20, 40, 1000]);
        assert_eq!(policy.delay(u32::MAX, 0.5), Duration::from_millis(500));
        assert_eq!(policy.delay(3, 0.0), Duration::ZERO);
    }
}
