//! Computes the group's lag in this member's partitions from librdkafka's statistics. librdkafka
//! knows the ends of partitions from its fetches, so no request is sent.

use std::collections::BTreeMap;

use message::Lag;
use rdkafka::Statistics;
use rdkafka::statistics::Partition;

/// Sums the lag of each topic's partitions that are read here. Leaves out a topic of which no
/// partition is known, as after a start, until the first fetch.
pub(super) fn lags(statistics: &Statistics) -> Vec<Lag> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, topic) in &statistics.topics {
        for behind in topic.partitions.values().filter_map(behind) {
            let sum = sums.entry(name).or_default();
            *sum = sum.saturating_add(behind);
        }
    }
    sums.into_iter().map(|(topic, messages)| Lag::new(topic, messages)).collect()
}

/// Returns the number of offsets between the committed one and the end that readers of committed
/// messages see. If nothing is committed yet, counts from the oldest message.
fn behind(partition: &Partition) -> Option<u64> {
    // librdkafka keeps messages without a partition under a negative number.
    if partition.partition < 0 || !partition.desired || partition.hi_offset < 0 {
        return None;
    }
    let end = if partition.ls_offset >= 0 { partition.ls_offset } else { partition.hi_offset };
    let begin = match partition.committed_offset {
        committed if committed >= 0 => committed,
        _ => partition.lo_offset.max(0),
    };
    Some(u64::try_from(end.saturating_sub(begin)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a partition with these offsets: its begin, its end and the end of what is stable.
    fn partition(committed: i64, offsets: [i64; 3]) -> Partition {
        let [low, high, stable] = offsets;
        Partition {
            desired: true,
            committed_offset: committed,
            lo_offset: low,
            hi_offset: high,
            ls_offset: stable,
            ..Partition::default()
        }
    }

    #[test]
    fn the_lag_is_counted_from_what_is_committed() {
        assert_eq!(behind(&partition(7, [0, 10, 9])), Some(2));
        assert_eq!(behind(&partition(7, [0, 10, -1001])), Some(3));
        assert_eq!(behind(&partition(-1001, [4, 10, 10])), Some(6));
        assert_eq!(behind(&partition(12, [0, 10, 10])), Some(0));
        assert_eq!(behind(&partition(-1001, [-1001, -1001, -1001])), None);
        assert_eq!(behind(&Partition { partition: -1, ..partition(0, [0, 5, 5]) }), None);
        assert_eq!(behind(&Partition { desired: false, ..partition(0, [0, 5, 5]) }), None);
    }
}
