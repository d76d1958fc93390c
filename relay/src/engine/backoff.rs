//! How long to wait before the next attempt. Pure: the randomness comes in as a number.

use std::time::Duration;

use crate::engine::options::RetryPolicy;

/// The delay before attempt `attempt + 1`: full jitter over an exponential ceiling, `uniform` in
/// `0.0..1.0`.
///
/// Full jitter spreads retries best (Exponential Backoff and Jitter, AWS Architecture Blog, 2015);
/// a tenth of the ceiling is the floor, so that no delay is zero.
#[must_use]
pub fn delay(policy: &RetryPolicy, attempt: u32, uniform: f64) -> Duration {
    let doublings = attempt.saturating_sub(1).min(30);
    let ceiling = policy.initial.saturating_mul(1 << doublings).min(policy.delay_max);
    ceiling.mul_f64(0.1 + 0.9 * uniform.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ceiling_doubles_up_to_the_limit() {
        let policy = RetryPolicy::default();
        for (attempt, seconds) in [(0, 1), (1, 1), (2, 2), (3, 4), (9, 256), (10, 300), (4_000_000_000, 300)]
        {
            assert_eq!(delay(&policy, attempt, 1.0), Duration::from_secs(seconds), "attempt {attempt}");
        }
    }

    #[test]
    fn no_delay_is_zero() {
        assert_eq!(delay(&RetryPolicy::default(), 1, 0.0), Duration::from_millis(100));
    }
}
