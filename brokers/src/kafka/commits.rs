//! When positions are committed. Pure.
//!
//! Commits are asynchronous, and librdkafka reports the outcome of none of them in the mode that
//! its Rust binding uses: a commit that a rebalance or a coordinator's change refuses is a line in
//! its log. So the last positions are committed again some times. Otherwise a partition that gets
//! no more messages would seem unread for as long as it is quiet.
//!
//! A reader of fixed partitions is no member of its group, and Kafka forgets the offsets of a group
//! without members some time after their last commit (`offsets.retention.minutes`, 7 days): so all
//! of them are committed again for as long as it reads.

use std::time::{Duration, Instant};

/// How long at least between two commits: each is a write to the brokers' own log, and several
/// hundred batches a second, each with one, were a quarter of what the broker does. Whatever a
/// crash leaves uncommitted comes again, and the inbox knows it.
const COMMIT_EVERY: Duration = Duration::from_millis(100);
/// How long after the last movement all positions are committed again.
const REPEAT_AFTER: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(60)];
/// How often the positions of fixed partitions are committed at least, all of them.
const KEEP_EVERY: Duration = Duration::from_secs(3_600);

/// The commits of one subscription.
#[derive(Debug, Default)]
pub(super) struct Commits {
    moved_at: Option<Instant>,
    repeated: usize,
    /// With fixed partitions: when all positions were committed last.
    kept_at: Option<Instant>,
}

impl Commits {
    /// The commits of fixed partitions, which begin to be read now.
    pub(super) fn kept(now: Instant) -> Self {
        Self { kept_at: Some(now), ..Self::default() }
    }

    /// Whether positions that moved may be committed now.
    pub(super) fn may_follow(&self, now: Instant) -> bool {
        self.moved_at.is_none_or(|at| now.duration_since(at) >= COMMIT_EVERY)
    }

    /// Positions that moved are committed now.
    pub(super) fn moved(&mut self, now: Instant) {
        *self = Self { moved_at: Some(now), repeated: 0, kept_at: self.kept_at };
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
        let is_due = is_due || self.kept_at.is_some_and(|at| now.duration_since(at) >= KEEP_EVERY);
        if is_due {
            self.kept_at = self.kept_at.and(Some(now));
        }
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

    #[test]
    fn positions_of_fixed_partitions_are_committed_every_hour_whether_one_moves_or_not() {
        let start = Instant::now();
        let after = |minute: u64| start + Duration::from_secs(60 * minute);
        let mut idle = Commits::kept(start);
        let repeats: Vec<u64> = (0..200).filter(|minute| idle.repeat(after(*minute))).collect();
        assert_eq!(repeats, [60, 120, 180]);
        // Another partition has messages all the time: the quiet one is in no commit of what moved.
        let mut busy = Commits::kept(start);
        let repeats = (0..200_u64 * 120).filter(|turn| {
            let now = start + Duration::from_millis(500 * turn);
            let is_repeated = busy.repeat(now);
            busy.moved(now);
            is_repeated
        });
        assert_eq!(repeats.collect::<Vec<_>>(), [7_200, 14_400, 21_600]);
        let mut member = Commits::default();
        assert_eq!((0..200).filter(|minute| member.repeat(after(*minute))).count(), 0);
    }
}
