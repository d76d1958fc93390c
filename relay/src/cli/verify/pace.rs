//! How fast other people's databases are read.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

/// Lets so many rows through per second, over all that is read.
pub(super) struct Pace {
    rows_per_second: NonZeroU32,
    /// When what was read so far is due.
    due_at: Instant,
}

impl Pace {
    pub(super) fn new(rows_per_second: NonZeroU32) -> Self {
        Self { rows_per_second, due_at: Instant::now() }
    }

    /// Waits until rows that were just read are due. What was slow by itself is not caught up.
    pub(super) async fn rows(&mut self, count: usize) {
        let seconds = count as f64 / f64::from(self.rows_per_second.get());
        self.due_at = self.due_at.max(Instant::now()) + Duration::from_secs_f64(seconds);
        tokio::time::sleep_until(self.due_at).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rows_take_their_time() {
        let begun_at = Instant::now();
        let mut pace = Pace::new(NonZeroU32::new(1_000).unwrap());
        pace.rows(500).await;
        pace.rows(1_500).await;
        assert_eq!(begun_at.elapsed().as_millis(), 2_000);
        tokio::time::advance(Duration::from_secs(60)).await;
        let resumed_at = Instant::now();
        pace.rows(1_000).await;
        assert_eq!(resumed_at.elapsed().as_millis(), 1_000);
    }
}
