//! Decides when positions are committed. Pure.
//!
//! Commits are asynchronous, and in the mode that its Rust binding uses, librdkafka never reports
//! their outcome. A commit that is refused because of a rebalance or a change of coordinator is
//! only a line in its log. So the last positions are committed again a few times. Otherwise a
//! partition that gets no more messages would seem unread for as long as it is quiet.
//!
//! A reader of fixed partitions is not a member of its group, and Kafka forgets the offsets of a
//! group without members some time after their last commit (`offsets.retention.minutes`, 7 days).
//! So such a reader commits all its positions again for as long as it reads.

use std::time::{Duration, Instant};

/// Minimum time between two commits. Each is a write to the brokers' own log; at several hundred
/// batches a second, one commit per batch was a quarter of the broker's work. Whatever a crash
/// leaves uncommitted is delivered again, and the inbox recognizes it.
const COMMIT_EVERY: Duration = Duration::from_millis(100);
/// Delays after the last movement at which all positions are committed again.
const REPEAT_AFTER: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(60)];
/// Time between two searches for offsets that have no message and that positions can pass.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum time between two commits of all positions of fixed partitions.
const KEEP_EVERY: Duration = Duration::from_secs(3_600);

/// The commits of one subscription.
#[derive(Debug, Default)]
pub(super) struct Commits {
    moved_at: Option<Instant>,
    repeated: usize,
    /// With fixed partitions: when all positions were last committed.
    kept_at: Option<Instant>,
    looked_at: Option<Instant>,
}

impl Commits {
    /// Creates the commits of fixed partitions, which are read from now on.
    pub(super) fn kept(now: Instant) -> Self {
        Self { kept_at: Some(now), ..Self::default() }
    }

    /// Returns whether positions that moved may be committed now.
    pub(super) fn may_follow(&self, now: Instant) -> bool {
        self.moved_at.is_none_or(|at| now.duration_since(at) >= COMMIT_EVERY)
    }

    /// Records that positions that moved are committed now.
    pub(super) fn moved(&mut self, now: Instant) {
        self.moved_at = Some(now);
        self.repeated = 0;
    }

    /// Returns whether to search for offsets that have no message. Returns true once whenever such
    /// a search is due.
    pub(super) fn look_for_markers(&mut self, now: Instant) -> bool {
        let is_due = self.looked_at.is_none_or(|at| now.duration_since(at) >= LOOK_EVERY);
        if is_due {
            self.looked_at = Some(now);
        }
        is_due
    }

    /// Returns whether all repetitions have been made.
    pub(super) fn are_repeated(&self) -> bool {
        self.repeated == REPEAT_AFTER.len()
    }

    /// Returns whether to commit all positions again. Returns true once whenever that is due.
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
    fn offsets_without_a_message_are_looked_for_once_a_second() {
        let (mut commits, start) = (Commits::default(), Instant::now());
        let looks: Vec<u64> =
            (0..30).filter(|n| commits.look_for_markers(start + Duration::from_millis(n * 100))).collect();
        assert_eq!(looks, [0, 10, 20]);
    }

    #[test]
    fn positions_of_fixed_partitions_are_committed_every_hour_whether_one_moves_or_not() {
        let start = Instant::now();
        let after = |minute: u64| start + Duration::from_secs(60 * minute);
        let mut idle = Commits::kept(start);
        let repeats: Vec<u64> = (0..200).filter(|minute| idle.repeat(after(*minute))).collect();
        assert_eq!(repeats, [60, 120, 180]);
        // Another partition is always busy: commits of moved positions never include the quiet one.
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
