//! Pauses between full checkpoints, in which producers can write: the file has one writer.

use std::time::Duration;

use tokio::time::Instant;

/// Number of changes from which a checkpoint is full: others follow it at once.
const FULL: usize = 100;

/// Longest pause: a renewal of the lease waits for no more than this besides the checkpoint.
const REST_MAX: Duration = Duration::from_millis(100);

/// How long the next full checkpoint waits.
#[derive(Debug, Default)]
pub(super) struct Rest {
    until: Option<Instant>,
}

impl Rest {
    /// Waits until producers have had as much time as the last full checkpoint took. Does nothing
    /// before a checkpoint of few changes. Cancel-safe.
    pub(super) async fn before(&mut self, changes: usize) {
        if let Some(until) = self.until.filter(|_| changes >= FULL) {
            tokio::time::sleep_until(until).await;
        }
    }

    /// Records that a checkpoint has kept others from writing since this time.
    pub(super) fn after(&mut self, changes: usize, since: Instant) {
        let now = Instant::now();
        let rest = now.duration_since(since).min(REST_MAX);
        self.until = (changes >= FULL).then_some(now + rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how long a checkpoint of `next` changes waits behind one of `last` changes that took
    /// this long.
    async fn rest(last: usize, took: u64, next: usize) -> Duration {
        let (mut rest, begun) = (Rest::default(), Instant::now());
        rest.before(last).await;
        assert_eq!(begun.elapsed(), Duration::ZERO, "the first one waits for nothing");
        tokio::time::advance(Duration::from_millis(took)).await;
        rest.after(last, begun);
        let stored = Instant::now();
        rest.before(next).await;
        stored.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn producers_have_as_much_time_as_full_checkpoints_take() {
        assert_eq!(rest(1_000, 30, 1_000).await, Duration::from_millis(30));
        assert_eq!(rest(1_000, 3_000, 1_000).await, REST_MAX);
        assert_eq!(rest(1_000, 30, 3).await, Duration::ZERO);
        assert_eq!(rest(3, 30, 1_000).await, Duration::ZERO);
    }
}
