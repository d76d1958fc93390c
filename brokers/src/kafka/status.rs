//! The status of a subscription at this moment, for reports, metrics and tests.

use std::time::Duration;

/// The state of a subscription's reading; from [`Subscriber::status`](super::Subscriber::status).
#[derive(Debug, Clone, Default)]
pub struct ReadStatus {
    /// The partitions that are this member's, ordered by topic and number.
    pub partitions: Vec<PartitionStatus>,
    /// Topics of the subscription that the cluster does not have, or does not let this user read;
    /// in alphabetical order.
    pub unavailable: Vec<String>,
    /// How long reading has been paused, because the consumer takes no messages; nothing while it
    /// reads.
    pub paused_for: Option<Duration>,
    /// How many messages are fetched and not taken yet.
    pub ahead_len: usize,
    /// The most that `ahead_len` has been; never above `prefetch_len`.
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
    /// How long ago a message of it was read; nothing when none was, since it was assigned.
    pub read_ago: Option<Duration>,
}
