//! When positions are committed. Pure.
//!
//! Commits are asynchronous, and librdkafka reports the outcome of none of them in the mode that
//! its Rust binding uses: a commit that a rebalance or a coordinator's change refuses is a line in
//! its log. So the last positions are committed again some times. Otherwise a partition that gets
//! no more messages would seem unread for as long as it is quiet.

use std::time::{Duration, Instant};

/// How long at least between two commits: each is a write to the brokers' own log, and several
/// hundred batches a second, each with one, were a quarter of what the broker does. Whatever a
/// crash leaves uncommitted comes again, and the inbox knows it.
const COMMIT_EVERY: Duration = Duration::from_millis(100);
/// How long after the last movement all positions are committed again.
const REPEAT_AFTER: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(60)];

/// The commits of one subscription.
#[derive(Debug, Default)]
pub(super) struct Commits {
    moved_at: Option<Instant>,
    repeated: usize,
}

impl Commits {
    /// Whether positions that moved may be committed now.
    pub(super) fn may_follow(&self, now: Instant) -> bool {
        self.moved_at.is_none_or(|at| now.duration_since(at) >= COMMIT_EVERY)
    }

    /// Positions that moved are committed now.
    pub(super) fn moved(&mut self, now: Instant) {
        *self = Self { moved_at: Some(now), repeated: 0 };
    }

    /// Whether all positions were committed again as often as they are.
    pub(super) fn are_repeated(&self) -> bool {
        self.repeated == REPEAT_AFTER.len()
    }

    /// Whether to commit all positions again. Answers once with yes for each time that is due.
    pub(super) fn repeat(&mut self, now: Instant) -> bool {
        let due = self.moved_at.zip(REPEAT_AFTER.get(self.repeated));
        let is_due = due.is_some_and(|(at, after)| now.duration_since(at) >= *after);
        self.repeated += usize::from(is_due);
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_positions_are_committed_three_times_more() {
        let (mut commits, start) = (Commits::default(), Instant::now());
        assert!(commits.may_follow(start) && !commits.repeat(start));
        commits.moved(start);
        assert!(!commits.may_follow(start + Duration::from_millis(99)));
        commits.moved(start + Duration::from_millis(100));
        let repeats = (0..200_u64).filter(|second| commits.repeat(start + Duration::from_secs(*second)));
        assert_eq!(repeats.collect::<Vec<_>>(), [2, 11, 61]);
        assert!(commits.are_repeated());
        commits.moved(start + Duration::from_secs(300));
        assert!(!commits.are_repeated());
    }
}
