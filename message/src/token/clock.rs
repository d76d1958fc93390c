//! The clocks of generators.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Two clocks: the time of day, which may step, and a monotonic one. A test supplies its own.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Returns the time of day, as a duration since 1970. It may step in both directions.
    fn since_1970(&self) -> Duration;

    /// Returns the time since a fixed moment of this process. It never goes backwards. On Linux it
    /// stops while the machine is suspended.
    fn elapsed(&self) -> Duration;
}

/// The machine's clocks.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    started: Instant,
}

impl SystemClock {
    /// Returns the machine's clocks; [`elapsed`](Clock::elapsed) counts from now on.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "two of them count from different moments")]
    pub fn new() -> Self {
        Self { started: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn since_1970(&self) -> Duration {
        // A clock before 1970 is wrong; ids made by it are refused everywhere.
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

impl<C: Clock> Clock for Arc<C> {
    fn since_1970(&self) -> Duration {
        C::since_1970(self)
    }

    fn elapsed(&self) -> Duration {
        C::elapsed(self)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI64, Ordering};

    /// Clocks that a test advances separately.
    #[derive(Debug, Clone, Default)]
    pub(crate) struct Steps {
        millis: Arc<AtomicI64>,
        elapsed: Arc<AtomicI64>,
    }

    impl Steps {
        pub(crate) fn at(millis: i64) -> Self {
            let clock = Self::default();
            clock.step(millis);
            clock
        }

        /// Moves only the time of day.
        pub(crate) fn step(&self, millis: i64) {
            self.millis.fetch_add(millis, Ordering::Relaxed);
        }

        /// Lets time pass on both clocks.
        pub(crate) fn pass(&self, millis: i64) {
            self.step(millis);
            self.elapsed.fetch_add(millis, Ordering::Relaxed);
        }

        pub(crate) fn millis(&self) -> u64 {
            self.millis.load(Ordering::Relaxed).try_into().unwrap()
        }
    }

    impl Clock for Steps {
        fn since_1970(&self) -> Duration {
            Duration::from_millis(self.millis())
        }

        fn elapsed(&self) -> Duration {
            Duration::from_millis(self.elapsed.load(Ordering::Relaxed).try_into().unwrap())
        }
    }

    #[test]
    fn the_clocks_of_the_machine_go_on() {
        let clock = SystemClock::new();
        let (time, elapsed) = (clock.since_1970(), clock.elapsed());
        assert!(time > Duration::from_secs(1_700_000_000), "{time:?}");
        assert!(clock.elapsed() >= elapsed);
    }
}
