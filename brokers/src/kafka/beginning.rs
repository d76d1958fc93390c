//! Start position of a group that is new to a topic and configured to begin at the end.
//!
//! librdkafka's `auto.offset.reset=latest` cannot express that: it applies whenever there is no
//! usable offset. It would also skip the contents of a partition that was added later, messages
//! that arrived while a group without commits was away, and a whole partition when its offset is
//! out of range. So that property is always `earliest`, and "latest" is a commit: before a group
//! without offsets in a topic joins, it commits the ends of all its partitions, once.
//!
//! This happens once per subscriber and topic: everything in a topic that did not exist yet, or was
//! recreated, is read. Each partition gets an offset with its first delivery (`ledger.rs`), so that
//! a topic that is being read no longer counts as new, even if none of its messages is done.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::thread;
use std::time::{Duration, Instant};

use message::SubscriptionError;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{Offset, TopicPartitionList};

use super::callbacks::Callbacks;
use super::committed;

/// Minimum time that a broker gets to answer. librdkafka takes zero to mean "wait forever".
const PATIENCE_MIN: Duration = Duration::from_millis(10);
/// Pause before asking again for partitions whose leaders did not answer.
const AGAIN: Duration = Duration::from_millis(100);

/// A partition: topic and number.
type Place<'t> = (&'t str, i32);

/// Commits the ends of the topics in which the group has no offset. Blocks for at most about
/// `timeout` per request, whatever the number of partitions.
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
    let cluster = Cluster { consumer, timeout };
    match cluster.begin(topics) {
        Ok(None) => Ok(()),
        Ok(Some(refusal)) => {
            tracing::warn!(
                target: "brokers::kafka", origin, error = %refusal,
                "start = \"latest\" does not apply: the group already has members, and only a group without members can start at the end of a topic that is new to it; it starts at the oldest message"
            );
            Ok(())
        }
        Err(error) => {
            let text = format!("{origin}: cannot determine where the group starts: {error}");
            Err(SubscriptionError::lost(text).with_source(error))
        }
    }
}

/// Returns whether a group has no offset in any partition of a topic. If it has one, the partitions
/// without an offset were added later.
fn is_new(committed: &[Offset]) -> bool {
    committed.iter().all(|offset| !matches!(offset, Offset::Offset(_)))
}

/// Returns whether this is the coordinator's answer to a commit from outside a group that has
/// members.
pub(super) fn has_members(code: Code) -> bool {
    matches!(code, Code::UnknownMemberId | Code::IllegalGeneration | Code::RebalanceInProgress)
}

struct Cluster<'a> {
    consumer: &'a BaseConsumer<Callbacks>,
    timeout: Duration,
}

impl Cluster<'_> {
    /// Commits the ends of the topics that are new to the group. Returns the refusal if the group
    /// has members.
    fn begin(&self, topics: &HashSet<&str>) -> Result<Option<KafkaError>, KafkaError> {
        let new = self.new_places(topics)?;
        if new.is_empty() {
            return Ok(None);
        }
        match self.consumer.commit(&self.ends(new)?, CommitMode::Sync) {
            Err(error) if error.rdkafka_error_code().is_some_and(has_members) => {
                // A member that started at the same time may have committed them.
                Ok((!self.new_places(topics)?.is_empty()).then_some(error))
            }
            committed => committed.map(|()| None),
        }
    }

    /// Returns the partitions of the topics that are new to the group.
    fn new_places<'t>(&self, topics: &HashSet<&'t str>) -> Result<BTreeSet<Place<'t>>, KafkaError> {
        let mut places = Vec::new();
        for topic in topics {
            places.extend(self.leaders(topic)?.into_iter().map(|(partition, _)| (*topic, partition)));
        }
        let mut known: HashMap<String, Vec<Offset>> = HashMap::new();
        for (topic, _, offset) in committed::offsets(self.consumer, &places, self.timeout)? {
            known.entry(topic).or_default().push(offset);
        }
        places.retain(|(topic, _)| known.get(*topic).is_none_or(|committed| is_new(committed)));
        Ok(places.into_iter().collect())
    }

    /// Returns the partitions of a topic with their leaders. A missing topic has none: all its
    /// messages are yet to come.
    fn leaders(&self, topic: &str) -> Result<Vec<(i32, i32)>, KafkaError> {
        committed::partitions(self.consumer, topic, self.timeout)
    }

    /// Returns the ends of the partitions whose leaders answer in time. Fails if none does.
    fn ends(&self, mut left: BTreeSet<Place<'_>>) -> Result<TopicPartitionList, KafkaError> {
        let (count, deadline) = (left.len(), Instant::now() + self.timeout);
        let mut ends = TopicPartitionList::with_capacity(count);
        let mut failure = KafkaError::MetadataFetch(Code::LeaderNotAvailable);
        loop {
            match self.by_leader(&left) {
                Err(error) => failure = error,
                Ok(groups) => {
                    for places in groups.into_values() {
                        // A hanging broker must not use up the time for the others.
                        let patience = deadline.saturating_duration_since(Instant::now()) / 2;
                        match self.ask_ends(&places, patience.max(PATIENCE_MIN)) {
                            Err(error) => failure = error,
                            Ok(found) => {
                                for (place, end) in found {
                                    left.remove(&place);
                                    ends.add_partition_offset(place.0, place.1, Offset::Offset(end))?;
                                }
                            }
                        }
                    }
                }
            }
            if left.is_empty() || Instant::now() >= deadline {
                break;
            }
            thread::sleep(AGAIN);
        }
        if ends.count() == 0 {
            return Err(failure);
        }
        if !left.is_empty() {
            tracing::warn!(
                target: "brokers::kafka", partitions = ?left, error = %failure,
                "start = \"latest\" does not apply to partitions whose leaders do not answer: they start at their oldest messages"
            );
        }
        tracing::info!(target: "brokers::kafka", partitions = ends.count(), of = count, "a new group starts at the end");
        Ok(ends)
    }

    /// Groups the partitions that have a leader by leader, so that one request covers all
    /// partitions of a leader.
    fn by_leader<'t>(
        &self,
        places: &BTreeSet<Place<'t>>,
    ) -> Result<BTreeMap<i32, Vec<Place<'t>>>, KafkaError> {
        let topics: BTreeSet<&str> = places.iter().map(|(topic, _)| *topic).collect();
        let mut groups: BTreeMap<i32, Vec<Place<'t>>> = BTreeMap::new();
        for topic in topics {
            let led = self.leaders(topic)?.into_iter().filter(|(_, leader)| *leader >= 0);
            for (partition, leader) in led {
                groups.entry(leader).or_default().extend(places.get(&(topic, partition)));
            }
        }
        groups.retain(|_, places| !places.is_empty());
        Ok(groups)
    }

    /// Returns the ends that become known within `patience`.
    fn ask_ends<'t>(
        &self,
        places: &[Place<'t>],
        patience: Duration,
    ) -> Result<Vec<(Place<'t>, i64)>, KafkaError> {
        let mut list = TopicPartitionList::with_capacity(places.len());
        for (topic, partition) in places {
            list.add_partition_offset(topic, *partition, Offset::End)?;
        }
        let answered = self.consumer.offsets_for_times(list, patience)?;
        let end_of = |(topic, partition): &Place<'_>| {
            let found = answered.find_partition(topic, *partition)?;
            match (found.error(), found.offset()) {
                (Ok(()), Offset::Offset(end)) => Some(end),
                _ => None,
            }
        };
        Ok(places.iter().filter_map(|place| Some((*place, end_of(place)?))).collect())
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
