//! Where a group begins that is new to a topic, when it is to begin at the end.
//!
//! librdkafka's `auto.offset.reset=latest` cannot say that: it holds whenever there is no usable
//! offset, so it also skips what is in a partition that was added later, what came while a group
//! was away that had not committed yet, and everything there is when an offset is out of range. So
//! that property is `earliest`, always, and "latest" is a commit: once, before a group that has no
//! offset in a topic joins, the ends of all its partitions are committed.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use message::SubscriptionError;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{Offset, TopicPartitionList};

use super::inflow::Callbacks;

/// Commits the ends of those topics that the group has no offset in. Blocks for at most about
/// `timeout`.
///
/// # Errors
/// [`SubscriptionError`] when the cluster does not answer: then nothing is known, and nothing was
/// skipped.
pub(super) fn begin_at_the_end(
    consumer: &BaseConsumer<Callbacks>,
    topics: &HashSet<&str>,
    origin: &str,
    timeout: Duration,
) -> Result<(), SubscriptionError> {
    let cluster = Cluster { consumer, deadline: Instant::now() + timeout };
    match cluster.begin(topics) {
        Ok(None) => Ok(()),
        Ok(Some(refusal)) => {
            tracing::warn!(
                target: "brokers::kafka", origin, error = %refusal,
                "start = \"latest\" does not hold: the group has members already, and only a group without any can \
                 begin at the end of a topic that is new to it; it begins at the oldest message"
            );
            Ok(())
        }
        Err(error) => {
            let text = format!("{origin}: cannot find out where the group begins: {error}");
            Err(SubscriptionError::lost(text).with_source(error))
        }
    }
}

/// Whether a group has no offset in any partition of a topic. With one, the partitions without were
/// added later.
fn is_new(committed: &[Offset]) -> bool {
    committed.iter().all(|offset| !matches!(offset, Offset::Offset(_)))
}

/// What the coordinator answers to a commit from outside a group that has members.
fn has_members(code: Code) -> bool {
    matches!(code, Code::UnknownMemberId | Code::IllegalGeneration | Code::RebalanceInProgress)
}

struct Cluster<'a> {
    consumer: &'a BaseConsumer<Callbacks>,
    deadline: Instant,
}

impl Cluster<'_> {
    /// The time that is left. librdkafka takes zero for "as long as it takes".
    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }

    /// Commits the ends of the topics that are new to the group. Returns why not, when it has members.
    fn begin(&self, topics: &HashSet<&str>) -> Result<Option<KafkaError>, KafkaError> {
        let new = self.new_topics(topics)?;
        let mut positions = TopicPartitionList::new();
        for (topic, partitions) in &new {
            self.add_ends(topic, partitions, &mut positions)?;
        }
        if positions.count() == 0 {
            return Ok(None);
        }
        match self.consumer.commit(&positions, CommitMode::Sync) {
            Err(error) if error.rdkafka_error_code().is_some_and(has_members) => {
                // A member that started at the same time may have done it.
                Ok((!self.new_topics(topics)?.is_empty()).then_some(error))
            }
            committed => committed.map(|()| None),
        }
    }

    /// The topics that are new to the group, and their partitions.
    fn new_topics<'t>(&self, topics: &HashSet<&'t str>) -> Result<Vec<(&'t str, Vec<i32>)>, KafkaError> {
        let mut new = Vec::new();
        for topic in topics {
            let partitions = self.partitions(topic)?;
            if is_new(&self.committed(topic, &partitions)?) && !partitions.is_empty() {
                new.push((*topic, partitions));
            }
        }
        Ok(new)
    }

    /// The partitions of a topic; none of one that does not exist: all of it is still to come.
    fn partitions(&self, topic: &str) -> Result<Vec<i32>, KafkaError> {
        let metadata = self.consumer.fetch_metadata(Some(topic), self.left())?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        Ok(found
            .map(|found| found.partitions().iter().map(|partition| partition.id()).collect())
            .unwrap_or_default())
    }

    fn committed(&self, topic: &str, partitions: &[i32]) -> Result<Vec<Offset>, KafkaError> {
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for partition in partitions {
            list.add_partition(topic, *partition);
        }
        let committed = self.consumer.committed_offsets(list, self.left())?;
        committed.elements().iter().map(|element| element.error().map(|()| element.offset())).collect()
    }

    fn add_ends(
        &self,
        topic: &str,
        partitions: &[i32],
        positions: &mut TopicPartitionList,
    ) -> Result<(), KafkaError> {
        let mut skipped = 0;
        for partition in partitions {
            let (oldest, end) = self.consumer.fetch_watermarks(topic, *partition, self.left())?;
            skipped += end - oldest;
            positions.add_partition_offset(topic, *partition, Offset::Offset(end))?;
        }
        tracing::info!(target: "brokers::kafka", topic, partitions = partitions.len(), skipped, "a new group begins at the end");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_new_to_a_topic_when_it_has_no_offset_in_any_of_its_partitions() {
        assert!(is_new(&[]));
        assert!(is_new(&[Offset::Invalid, Offset::Invalid]));
        assert!(!is_new(&[Offset::Invalid, Offset::Offset(0)]));
    }
}
