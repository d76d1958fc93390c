//! The pace at which databases are read and messages are replayed.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

/// Limits the rows per second, over all reads.
pub(crate) struct Pace {
    rows_per_second: NonZeroU32,
    /// The time at which the rows read so far are due.
    due_at: Instant,
}

impl Pace {
    /// Begins now.
    #[must_use]
    pub(crate) fn new(rows_per_second: NonZeroU32) -> Self {
        Self { rows_per_second, due_at: Instant::now() }
    }

    /// Waits until the rows just read are due.
    pub(crate) async fn rows(&mut self, count: usize) {
        tokio::time::sleep_until(self.due(count, Instant::now())).await;
    }

    /// Returns when the rows read by `now` are due. Time lost by slow reads is not made up.
    fn due(&mut self, count: usize, now: Instant) -> Instant {
        let seconds = count as f64 / f64::from(self.rows_per_second.get());
        self.due_at = self.due_at.max(now) + Duration::from_secs_f64(seconds);
        self.due_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_take_their_time() {
        let mut pace = Pace::new(NonZeroU32::new(1_000).unwrap());
        let begun_at = pace.due_at;
        let after = |seconds| begun_at + Duration::from_secs(seconds);
        assert_eq!(pace.due(1_000, begun_at), after(1));
        // Read at once, so they are due after the previous rows.
        assert_eq!(pace.due(2_000, begun_at), after(3));
        // Time lost in a long pause is not made up.
        assert_eq!(pace.due(1_000, after(60)), after(61));
    }
}
