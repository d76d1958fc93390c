//! Limits for the retries of a call.

use std::time::Duration;

/// Limits on the number and the duration of retries of a call under its key. At the limit its
/// outcome is unknown, and the saga undoes it with the steps before it.
///
/// A call without limits is tried up to the workers' limit of attempts. Then the saga is stuck, and
/// an operator decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    pub(crate) attempts_max: u32,
    pub(crate) within: Duration,
}

impl Retry {
    /// Permits this many attempts in total; at least one is made.
    #[must_use]
    pub fn times(attempts: u32) -> Self {
        Self { attempts_max: attempts.max(1), within: Duration::MAX }
    }

    /// Permits no further attempt once this time has passed since the first one began, by the
    /// clocks of database and worker. If they differ, the later of the two times decides.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self { within: limit, ..self }
    }

    /// Returns whether no further attempt is made.
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
