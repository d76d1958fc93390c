//! Assigned partitions that librdkafka has not begun to read, and those that it never will. Pure.
//!
//! It begins a partition at the offset that the group has committed. When the coordinator refuses
//! to tell (it has just moved or is not available; measured: every code but those of a request that
//! is repeated), librdkafka reports the error once, refreshes the coordinator, and never asks again
//! for these partitions (2.12.1, `rd_kafka_assignment_apply_offsets`): the member keeps them, sends
//! heartbeats, and reads nothing until the next rebalance. Only a new subscription asks again.
//!
//! The error does not say what was refused, and most errors pass by themselves. So the statistics
//! decide: a partition that has not begun some time after an error will not begin any more.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rdkafka::Statistics;
use rdkafka::error::RDKafkaErrorCode as Code;

use super::ledger::Place;

/// How long after an error a partition may still begin: requests that librdkafka repeats are
/// repeated within a second.
const BEGINS_WITHIN: Duration = Duration::from_secs(5);

/// The first error since a partition was assigned.
type Complaint = Option<(Instant, Code)>;

/// The assigned partitions that have not begun, as far as is known.
#[derive(Debug, Default)]
pub(super) struct Starts {
    waiting: HashMap<Place, Complaint>,
}

/// A partition that is assigned and will not be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}[{}] is assigned and not read: its committed offset was not told ({code})", place.0, place.1)]
pub(super) struct NotBegun {
    place: Place,
    code: Code,
}

impl Starts {
    /// Partitions have come.
    pub(super) fn assign(&mut self, places: &[Place]) {
        self.waiting.extend(places.iter().map(|place| (place.clone(), None)));
    }

    /// Partitions go.
    pub(super) fn revoke(&mut self, places: &[Place]) {
        self.waiting.retain(|place, _| !places.contains(place));
    }

    /// librdkafka has reported an error.
    pub(super) fn complain(&mut self, code: Code, now: Instant) {
        for complaint in self.waiting.values_mut() {
            complaint.get_or_insert((now, code));
        }
    }

    /// The cluster has answered for the first time: what was asked before could not be told.
    pub(super) fn reached(&mut self, now: Instant) {
        self.waiting.values_mut().flatten().for_each(|(at, _)| *at = now);
    }

    /// Takes over what librdkafka tells about its partitions.
    ///
    /// # Errors
    /// [`NotBegun`] when there is one that it has given up.
    pub(super) fn check(&mut self, statistics: &Statistics, now: Instant) -> Result<(), NotBegun> {
        self.waiting.retain(|(topic, partition), _| !has_begun(statistics, topic, *partition));
        let is_over = |(at, _): &(Instant, Code)| now.duration_since(*at) >= BEGINS_WITHIN;
        let given_up =
            self.waiting.iter().find_map(|(place, complaint)| Some((place, complaint.filter(is_over)?)));
        match given_up {
            Some((place, (_, code))) => Err(NotBegun { place: place.clone(), code }),
            None => Ok(()),
        }
    }
}

/// Whether librdkafka reads a partition, or looks for the place to begin at.
fn has_begun(statistics: &Statistics, topic: &str, partition: i32) -> bool {
    let told = statistics.topics.get(topic).and_then(|topic| topic.partitions.get(&partition));
    told.is_some_and(|told| !matches!(told.fetch_state.as_str(), "none" | "stopping" | "stopped"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rdkafka::statistics::{Partition, Topic};

    use super::*;

    fn place(partition: i32) -> Place {
        (Arc::from("orders"), partition)
    }

    /// Statistics of partitions 0, 1, …
    fn told(states: &[&str]) -> Statistics {
        let partition = |state: &&str| Partition { fetch_state: (*state).to_owned(), ..Partition::default() };
        let partitions = (0..).zip(states.iter().map(partition)).collect();
        let topic = Topic { partitions, ..Topic::default() };
        Statistics { topics: [(String::from("orders"), topic)].into(), ..Statistics::default() }
    }

    #[test]
    fn a_partition_that_has_not_begun_some_time_after_an_error_is_given_up() {
        let (mut starts, begin) = (Starts::default(), Instant::now());
        let after = |seconds| begin + Duration::from_secs(seconds);
        // Of before the assignment.
        starts.complain(Code::NotCoordinator, begin);
        starts.assign(&[place(0), place(1), place(2)]);
        assert_eq!(starts.check(&told(&["none", "stopped", "none"]), after(60)), Ok(()), "no error since");
        starts.complain(Code::CoordinatorNotAvailable, after(60));
        starts.complain(Code::BrokerTransportFailure, after(64));
        assert_eq!(starts.check(&told(&["none", "stopped", "none"]), after(64)), Ok(()), "too early");
        starts.revoke(&[place(2)]);
        assert_eq!(starts.check(&told(&["active", "stopped", "none"]), after(65)), {
            Err(NotBegun { place: place(1), code: Code::CoordinatorNotAvailable })
        });
        assert_eq!(
            starts.check(&told(&["none", "offset-query", "none"]), after(66)),
            Ok(()),
            "both have begun"
        );
    }

    #[test]
    fn the_time_without_the_cluster_does_not_count() {
        let (mut starts, begin) = (Starts::default(), Instant::now());
        starts.assign(&[place(0)]);
        starts.complain(Code::BrokerTransportFailure, begin);
        let reached = begin + Duration::from_secs(60);
        starts.reached(reached);
        assert_eq!(starts.check(&told(&["none"]), reached), Ok(()));
        let given_up = NotBegun { place: place(0), code: Code::BrokerTransportFailure };
        assert_eq!(starts.check(&told(&["none"]), reached + BEGINS_WITHIN), Err(given_up));
    }

    #[test]
    fn a_partition_that_has_begun_is_given_up_by_no_error() {
        let (mut starts, begin) = (Starts::default(), Instant::now());
        starts.assign(&[place(0)]);
        assert_eq!(starts.check(&told(&["active"]), begin), Ok(()));
        starts.complain(Code::AllBrokersDown, begin);
        assert_eq!(starts.check(&told(&["none"]), begin + Duration::from_secs(60)), Ok(()));
    }
}
