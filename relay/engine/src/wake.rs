//! Decides when to poll for new entries again.
//!
//! An empty poll costs the database about 20 µs. So polling is fast and nearly free: every 1–2 ms
//! while messages arrive, even a few a second, and every 50 ms otherwise. It also needs no NOTIFY,
//! which would serialise the commits of the business transactions.

use std::time::Duration;

/// For this long after an entry, the next one is expected soon. At ten messages a second, each is
/// found within 2 ms instead of after the pause of an idle relay.
const ALERT: Duration = Duration::from_secs(1);
/// The longest pause during that time, as a multiple of the shortest.
const ALERT_FACTOR: u32 = 2;

/// The adaptive pause between polls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pace {
    min: Duration,
    max: Duration,
    next: Duration,
    /// The sum of the pauses since the last entry.
    waited: Duration,
}

impl Pace {
    /// Starts with the shortest pause, and expects no entry soon.
    #[must_use]
    pub(crate) fn new(min: Duration, max: Duration) -> Self {
        Self { min, max: max.max(min), next: min, waited: ALERT }
    }

    /// Records that a poll found entries: the next pause is the shortest.
    pub(crate) fn found(&mut self) {
        self.next = self.min;
        self.waited = Duration::ZERO;
    }

    /// Records that a poll found nothing, and returns the pause before the next one. Each pause is
    /// half as long again, up to a bound.
    pub(crate) fn empty(&mut self) -> Duration {
        let pause = self.next;
        self.waited = self.waited.saturating_add(pause);
        let longest = if self.waited < ALERT { self.max.min(self.min * ALERT_FACTOR) } else { self.max };
        self.next = (self.next * 3 / 2).clamp(self.min, longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_while_idle_and_shrinks_at_once() {
        let mut pace = Pace::new(Duration::from_millis(2), Duration::from_millis(50));
        let pauses: Vec<u128> = (0..10).map(|_| pace.empty().as_micros()).collect();
        assert_eq!(pauses, [2000, 3000, 4500, 6750, 10125, 15187, 22781, 34171, 50000, 50000]);
        pace.found();
        assert_eq!(pace.empty(), Duration::from_millis(2));
    }

    #[test]
    fn the_pause_stays_short_for_a_second_after_an_entry() {
        let mut pace = Pace::new(Duration::from_millis(1), Duration::from_millis(50));
        pace.found();
        let pauses: Vec<Duration> = (0..550).map(|_| pace.empty()).collect();
        assert!(pauses[..500].iter().all(|pause| *pause <= Duration::from_millis(2)));
        assert_eq!(*pauses.last().unwrap(), Duration::from_millis(50));
        let mut slow = Pace::new(Duration::from_millis(40), Duration::from_millis(50));
        slow.found();
        assert!((0..50).all(|_| slow.empty() <= Duration::from_millis(50)));
    }
}
