//! Delays between retries. Pure: the caller passes the random numbers.

use std::time::Duration;

/// Exponential backoff with jitter: a random part of `first × 2^(attempt − 1)`, bounded by `max`.
///
/// Full jitter spreads the retries of many processes over the whole interval, so that they do not
/// hit the failed service together (Exponential Backoff and Jitter, AWS Architecture Blog, 2015).
/// Every wait is at least a tenth of its bound, so none is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The bound of the first wait.
    pub first: Duration,
    /// The bound of every wait.
    pub max: Duration,
}

impl Backoff {
    /// For failed messages: 1 s, doubled up to 5 min.
    pub const MESSAGES: Self = Self { first: Duration::from_secs(1), max: Duration::from_secs(300) };
    /// For an unreachable database or broker: 200 ms, doubled up to 10 s.
    pub const OUTAGES: Self = Self { first: Duration::from_millis(200), max: Duration::from_secs(10) };

    /// Returns the longest possible wait after the `attempt`th failure (1 is the first).
    #[must_use]
    pub fn bound(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1);
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.max)
    }

    /// Returns the wait after the `attempt`th failure; `random` lies in 0..1.
    #[must_use]
    pub fn delay(&self, attempt: u32, random: f64) -> Duration {
        let bound = self.bound(attempt);
        part(bound, FLOOR + (1.0 - FLOOR) * random.clamp(0.0, 1.0)).min(bound)
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::MESSAGES
    }
}

/// Returns a pause between three quarters and five quarters of `span`; `random` lies in 0..1. It
/// spreads out processes that started together.
#[must_use]
pub fn jittered(span: Duration, random: f64) -> Duration {
    part(span, 0.75 + 0.5 * random)
}

/// Returns `span` times `factor`, or [`Duration::MAX`] on overflow.
fn part(span: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(span.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

/// The shortest wait, as a fraction of its bound.
const FLOOR: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_bound() {
        for (attempt, seconds) in
            [(0, 1), (1, 1), (2, 2), (3, 4), (9, 256), (10, 300), (33, 300), (u32::MAX, 300)]
        {
            assert_eq!(Backoff::MESSAGES.bound(attempt), Duration::from_secs(seconds), "attempt {attempt}");
        }
    }

    #[test]
    fn a_jittered_pause_lies_around_its_span() {
        let pauses = [0.0, 0.5, 1.0].map(|random| jittered(Duration::from_secs(4), random).as_secs());
        assert_eq!(pauses, [3, 4, 5]);
    }

    #[test]
    fn spans_without_a_bound_do_not_overflow() {
        let unbounded = Backoff { first: Duration::MAX, max: Duration::MAX };
        for random in [0.0, 0.5, 1.0] {
            assert!(unbounded.delay(u32::MAX, random) > Duration::from_secs(1 << 60), "{random}");
            assert!(jittered(Duration::MAX, random) > Duration::from_secs(1 << 63), "{random}");
        }
        assert_eq!(unbounded.delay(1, 1.0), Duration::MAX);
    }

    #[test]
    fn jitter_covers_the_interval_from_its_floor_and_no_more() {
        for (random, millis) in [(-1.0, 400), (0.0, 400), (0.5, 2_200), (1.0, 4_000), (7.0, 4_000)] {
            assert_eq!(Backoff::MESSAGES.delay(3, random), Duration::from_millis(millis), "{random}");
        }
    }
}
