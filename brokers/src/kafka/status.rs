//! The current status of a subscription, for reports, metrics and tests.

use std::time::Duration;

/// The state of a subscription's reading; from [`Subscriber::status`](super::Subscriber::status).
#[derive(Debug, Clone, Default)]
pub struct ReadStatus {
    /// The partitions assigned to this member, ordered by topic and number.
    pub partitions: Vec<PartitionStatus>,
    /// Topics of the subscription that the cluster does not have or does not let this user read, in
    /// alphabetical order.
    pub unavailable: Vec<String>,
    /// How long reading has been paused because the consumer takes no messages; `None` while it
    /// reads.
    pub paused_for: Option<Duration>,
    /// Number of prefetched messages that were not taken yet.
    pub ahead_len: usize,
    /// The highest value of `ahead_len` so far; never above `prefetch_len`.
    pub ahead_len_peak: usize,
    /// How often partitions were assigned.
    pub assignments: u64,
}

/// One assigned partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionStatus {
    /// Its topic.
    pub topic: String,
    /// Its number.
    pub partition: i32,
    /// Time since a message of it was last read; `None` if none was read since its assignment.
    pub read_ago: Option<Duration>,
}
