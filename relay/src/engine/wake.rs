//! When to look for new entries again.
//!
//! An empty poll costs the database about 20 µs, so polling every 1–2 ms while messages come and every 50 ms
//! when none do is both fast and nearly free; and it needs no NOTIFY, which would serialise the commits of the
//! business transactions.

use std::time::Duration;

/// The adaptive pause between polls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pace {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Pace {
    /// Starts at the shortest pause.
    #[must_use]
    pub fn new(min: Duration, max: Duration) -> Self {
        Self { min, max: max.max(min), next: min }
    }

    /// A poll found entries: the next pause is the shortest.
    pub fn found(&mut self) {
        self.next = self.min;
    }

    /// A poll found nothing: the pause to make now; the one after it is half as long again.
    pub fn empty(&mut self) -> Duration {
        let pause = self.next;
        self.next = (self.next * 3 / 2).clamp(self.min, self.max);
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
}
