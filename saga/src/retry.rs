//! How long a call is tried again.

use std::time::Duration;

/// How often, and for how long, a call is tried again under its key before the saga gives it up.
/// Its outcome is unknown then, and it is undone with the steps before it.
///
/// A call without one is tried up to the workers' limit of attempts, and then the saga is stuck: an
/// operator decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    pub(crate) attempts_max: u32,
    pub(crate) within: Duration,
}

impl Retry {
    /// At most so many attempts altogether; at least one is made.
    #[must_use]
    pub fn times(attempts: u32) -> Self {
        Self { attempts_max: attempts.max(1), within: Duration::MAX }
    }

    /// No further attempt begins so long after the first one began, by the database's clock.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self { within: limit, ..self }
    }

    /// Whether no further attempt is made.
    pub(crate) fn is_used_up(&self, attempts: u32, age: Duration) -> bool {
        attempts >= self.attempts_max || age >= self.within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_and_time_bound_a_call() {
        let retry = Retry::times(3).within(Duration::from_secs(60));
        assert!(!retry.is_used_up(2, Duration::from_secs(59)));
        assert!(retry.is_used_up(3, Duration::ZERO));
        assert!(retry.is_used_up(1, Duration::from_secs(60)));
        assert!(
            Retry::times(0).is_used_up(1, Duration::ZERO) && !Retry::times(0).is_used_up(0, Duration::ZERO)
        );
    }
}
