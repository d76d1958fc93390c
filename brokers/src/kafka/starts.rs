//! Tracks assigned partitions that librdkafka has not begun to read, and detects those that it has
//! abandoned. Pure.
//!
//! librdkafka begins a partition at the offset that the group has committed. The coordinator may
//! refuse to return it, because it has just moved or is not available. Then librdkafka reports that
//! once, looks up the coordinator again, and never asks again for these partitions (2.12.1,
//! `rd_kafka_assignment_apply_offsets`; confluentinc/librdkafka#5586). The member keeps them and
//! sends heartbeats, but does not read them until they are revoked. Only a new subscription asks
//! again.
//!
//! Requests that librdkafka repeats by itself (the coordinator is still loading, the connection
//! broke) are not reported like this. The report does not name the partitions; some time later, the
//! statistics show which ones have not begun.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rdkafka::Statistics;
use rdkafka::error::RDKafkaErrorCode as Code;

use super::ledger::Place;

/// Time after the report within which a partition may still begin. The report may not concern it,
/// and its offset may be on its way.
const BEGINS_WITHIN: Duration = Duration::from_secs(5);

/// Prefix of librdkafka's reports of refused offsets (`rdkafka_assignment.c`).
const REFUSED: &str = "Failed to fetch committed offset";

/// The first refusal since a partition was assigned.
type Refusal = Option<(Instant, Code)>;

/// The assigned partitions that are not known to have begun.
#[derive(Debug, Default)]
pub(super) struct Starts {
    waiting: HashMap<Place, Refusal>,
}

/// Error of a partition that is assigned and will not be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}[{}] is assigned but not read: its committed offset is unknown ({code})", place.0, place.1)]
pub(super) struct NotBegun {
    place: Place,
    code: Code,
}

impl Starts {
    /// Records assigned partitions.
    pub(super) fn assign(&mut self, places: &[Place]) {
        self.waiting.extend(places.iter().map(|place| (place.clone(), None)));
    }

    /// Records revoked partitions.
    pub(super) fn revoke(&mut self, places: &[Place]) {
        self.waiting.retain(|place, _| !places.contains(place));
    }

    /// Records an error that librdkafka reported, with its code and words.
    pub(super) fn error(&mut self, code: Code, reason: &str, now: Instant) {
        if reason.starts_with(REFUSED) {
            for refusal in self.waiting.values_mut() {
                refusal.get_or_insert((now, code));
            }
        }
    }

    /// Evaluates librdkafka's statistics about its partitions.
    ///
    /// # Errors
    /// [`NotBegun`] when librdkafka has abandoned a partition.
    pub(super) fn check(&mut self, statistics: &Statistics, now: Instant) -> Result<(), NotBegun> {
        self.waiting.retain(|(topic, partition), _| !has_begun(statistics, topic, *partition));
        let is_over = |(at, _): &(Instant, Code)| now.duration_since(*at) >= BEGINS_WITHIN;
        let given_up =
            self.waiting.iter().find_map(|(place, refusal)| Some((place, refusal.filter(is_over)?)));
        match given_up {
            Some((place, (_, code))) => Err(NotBegun { place: place.clone(), code }),
            None => Ok(()),
        }
    }
}

/// Returns whether librdkafka reads a partition or looks up its start offset.
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

    /// Returns statistics of partitions 0, 1, … in these states.
    fn told(states: &[&str]) -> Statistics {
        let partition = |state: &&str| Partition { fetch_state: (*state).to_owned(), ..Partition::default() };
        let partitions = (0..).zip(states.iter().map(partition)).collect();
        let topic = Topic { partitions, ..Topic::default() };
        Statistics { topics: [(String::from("orders"), topic)].into(), ..Statistics::default() }
    }

    const REPORT: &str = "Failed to fetch committed offsets for 3 partition(s) in group \"g\": moved";

    #[test]
    fn a_partition_that_has_not_begun_some_time_after_a_refusal_is_given_up() {
        let (mut starts, begin) = (Starts::default(), Instant::now());
        let after = |seconds| begin + Duration::from_secs(seconds);
        // From before the assignment.
        starts.error(Code::NotCoordinator, REPORT, begin);
        starts.assign(&[place(0), place(1), place(2)]);
        starts.error(Code::AllBrokersDown, "1/1 brokers are down", begin);
        assert_eq!(starts.check(&told(&["none", "stopped", "none"]), after(60)), Ok(()), "no refusal since");
        starts.error(Code::CoordinatorNotAvailable, REPORT, after(60));
        starts.error(Code::NotCoordinator, REPORT, after(64));
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
    fn a_partition_that_has_begun_is_given_up_by_no_refusal() {
        let (mut starts, begin) = (Starts::default(), Instant::now());
        starts.assign(&[place(0)]);
        assert_eq!(starts.check(&told(&["active"]), begin), Ok(()));
        starts.error(Code::NotCoordinator, REPORT, begin);
        assert_eq!(starts.check(&told(&["none"]), begin + Duration::from_secs(60)), Ok(()));
    }
}
