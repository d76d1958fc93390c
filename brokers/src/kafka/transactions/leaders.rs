//! Finds out, before a batch enters a transaction, whether every partition that it goes to has a
//! leader.
//!
//! A transaction ends when each of its partitions has stored the end. librdkafka adds a partition
//! to the transaction as soon as it has chosen it for a record (2.12.1,
//! `rd_kafka_msg_partitioner`), and Kafka accepts one without a leader. That transaction does not
//! end before the partition has a leader again, and until then no producer with its id can begin
//! another one: every topic of the relay would wait for one partition. So such a partition must
//! not be added. One that loses its leader after it was asked about can still be.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use message::{Fault, FaultScope, Message, PublishError};
use rdkafka::client::Client;
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::metadata::MetadataTopic;

use super::deliveries::Deliveries;
use crate::kafka::fault;
use crate::kafka::partitioner::partition_of;

/// Minimum time for which an answer is used.
const FRESH_MIN: Duration = Duration::from_secs(1);
/// The same in multiples of the time that asking took, so that a producer spends at most 2 percent
/// of its time on it.
const FRESH_TIMES: u32 = 50;
/// More topics than these are asked about in one request for all topics of the cluster: a request
/// names one topic or all.
const ONE_BY_ONE_MAX: usize = 8;
/// Maximum time to ask why something fails. The failure is reported in any case.
pub(super) const WHY_MAX: Duration = Duration::from_secs(2);
/// Maximum partitions that an error names.
const NAMED_MAX: usize = 5;

/// The cluster's answer about a topic.
#[derive(Debug, Clone)]
pub(super) struct Found {
    name: String,
    error: Option<Code>,
    partitions: usize,
    leaderless: BTreeSet<usize>,
}

/// The topics that the cluster was asked about recently.
#[derive(Debug, Default)]
pub(super) struct Leaders(HashMap<String, Known>);

/// A topic that exists.
#[derive(Debug)]
struct Known {
    partitions: usize,
    leaderless: BTreeSet<usize>,
    fresh_until: Instant,
}

impl Leaders {
    /// Asks about those of the topics that no recent answer exists for. `fetch` asks about one
    /// topic, or about all topics of the cluster. Returns an error for each topic that cannot be
    /// used.
    ///
    /// # Errors
    /// That of the session when the cluster does not answer.
    pub(super) fn ask<'t>(
        &mut self,
        topics: &BTreeSet<&'t str>,
        now: Instant,
        mut fetch: impl FnMut(Option<&str>) -> Result<Vec<Found>, Code>,
    ) -> Result<HashMap<&'t str, PublishError>, PublishError> {
        let mut unknown: Vec<&str> =
            topics.iter().copied().filter(|topic| !self.is_fresh(topic, now)).collect();
        if unknown.is_empty() {
            return Ok(HashMap::new());
        }
        self.0.retain(|_, known| known.fresh_until > now);
        let begun_at = Instant::now();
        let mut found = Vec::new();
        if unknown.len() > ONE_BY_ONE_MAX {
            // This request creates no topic, and does not say why one is missing in the answer.
            let all = fetch(None).map_err(|code| fault::session(code, "cannot list the topics"))?;
            found.extend(all.into_iter().filter(|found| found.is_usable() && topics.contains(&*found.name)));
            let listed: BTreeSet<&str> = found.iter().map(|found| found.name.as_str()).collect();
            unknown.retain(|topic| !listed.contains(topic));
        }
        let mut refused = HashMap::new();
        for topic in unknown {
            let answer = fetch(Some(topic)).map(|answer| answer.into_iter().next());
            match answer {
                Ok(Some(answer)) if answer.is_usable() => found.push(answer),
                Ok(Some(Found { error: Some(code), .. })) if fault::classify(code).0 != Fault::Broker => {
                    refused.insert(topic, fault::delivery(code, topic));
                }
                Ok(_) => {
                    let text = format!("kafka topic {topic:?} has no leader yet");
                    refused.insert(topic, PublishError::topic_busy(text));
                }
                Err(code) => {
                    let error = fault::delivery(code, topic);
                    if error.scope() == FaultScope::Session {
                        return Err(error);
                    }
                    refused.insert(topic, error);
                }
            }
        }
        let fresh_until = now + FRESH_MIN.max(begun_at.elapsed().saturating_mul(FRESH_TIMES));
        for Found { name, partitions, leaderless, .. } in found {
            self.0.insert(name, Known { partitions, leaderless, fresh_until });
        }
        Ok(refused)
    }

    fn is_fresh(&self, topic: &str, now: Instant) -> bool {
        self.0.get(topic).is_some_and(|known| known.fresh_until > now)
    }

    /// Checks that every partition that a message may go to has a leader, as far as is known.
    ///
    /// # Errors
    /// That of the topic, which names the partition.
    pub(super) fn check(&self, message: &Message) -> Result<(), PublishError> {
        let topic = message.topic.as_str();
        let key = message.key.as_ref().map(message::OrderingKey::as_str);
        let Some(partition) = self.0.get(topic).and_then(|known| known.leaderless_for(key)) else {
            return Ok(());
        };
        Err(PublishError::topic_busy(format!(
            "partition {partition} of kafka topic {topic:?} has no leader, and a transaction with it would not end: \
             nothing was sent; start a broker that has a replica of it"
        )))
    }
}

impl Known {
    /// Returns a partition without a leader that a message with this key may go to.
    fn leaderless_for(&self, key: Option<&str>) -> Option<usize> {
        match key {
            // The client chooses any partition.
            None => self.leaderless.first().copied(),
            Some(_) if self.leaderless.is_empty() => None,
            Some(key) => {
                let partition = partition_of(key.as_bytes(), self.partitions);
                self.leaderless.contains(&partition).then_some(partition)
            }
        }
    }
}

impl Found {
    fn is_usable(&self) -> bool {
        self.error.is_none() && self.partitions > 0
    }
}

impl From<&MetadataTopic> for Found {
    fn from(topic: &MetadataTopic) -> Self {
        let leaderless = topic.partitions().iter().filter(|partition| partition.leader() < 0);
        Self {
            name: topic.name().to_owned(),
            error: topic.error().map(Code::from),
            partitions: topic.partitions().len(),
            leaderless: leaderless.filter_map(|partition| usize::try_from(partition.id()).ok()).collect(),
        }
    }
}

/// Asks the cluster about one topic, or about all. Blocks.
pub(super) fn fetch(
    client: &Client<Deliveries>,
    topic: Option<&str>,
    timeout: Duration,
) -> Result<Vec<Found>, Code> {
    let metadata = client.fetch_metadata(topic, timeout);
    let metadata = metadata.map_err(|error| error.rdkafka_error_code().unwrap_or(Code::Unknown))?;
    Ok(metadata.topics().iter().map(Found::from).collect())
}

/// Returns whether the cluster reports that a partition of the topic has no leader. Blocks.
pub(super) fn is_leaderless(client: &Client<Deliveries>, topic: &str) -> bool {
    let found = fetch(client, Some(topic), WHY_MAX).unwrap_or_default();
    found.iter().any(|found| !found.leaderless.is_empty())
}

/// Names the partitions of the cluster that have no leader, or some of them. Blocks.
pub(super) fn leaderless(client: &Client<Deliveries>) -> Vec<String> {
    let found = fetch(client, None, WHY_MAX).unwrap_or_default();
    let named = |found: &Found| {
        let name = found.name.clone();
        found.leaderless.clone().into_iter().map(move |partition| format!("{name} [{partition}]"))
    };
    found.iter().flat_map(named).take(NAMED_MAX).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use crate::kafka::tests::keyed;

    use super::*;

    fn found(name: &str, partitions: usize, leaderless: &[usize]) -> Found {
        let leaderless = leaderless.iter().copied().collect();
        Found { name: name.to_owned(), error: None, partitions, leaderless }
    }

    /// A cluster that records what it was asked.
    struct Cluster {
        topics: Vec<Found>,
        asked: RefCell<Vec<Option<String>>>,
    }

    impl Cluster {
        fn new(topics: Vec<Found>) -> Self {
            Self { topics, asked: RefCell::default() }
        }

        fn answer(&self, topic: Option<&str>) -> Result<Vec<Found>, Code> {
            self.asked.borrow_mut().push(topic.map(str::to_owned));
            let Some(topic) = topic else { return Ok(self.topics.clone()) };
            let known = self.topics.iter().find(|found| found.name == topic).cloned();
            let missing = Found { error: Some(Code::UnknownTopicOrPartition), ..found(topic, 0, &[]) };
            Ok(vec![known.unwrap_or(missing)])
        }

        fn asked(&self) -> Vec<Option<String>> {
            self.asked.take()
        }
    }

    /// Goal: a message is held back if it may go to a partition without a leader, and only then.
    /// Oracle: the partition of its key.
    #[test]
    fn a_message_to_a_partition_without_a_leader_is_held_back() {
        let cluster = Cluster::new(vec![found("orders", 2, &[1]), found("payments", 2, &[])]);
        let mut leaders = Leaders::default();
        let topics = BTreeSet::from(["orders", "payments"]);
        let refused = leaders.ask(&topics, Instant::now(), |topic| cluster.answer(topic)).unwrap();
        assert!(refused.is_empty());
        for number in 0..20 {
            let key = format!("k{number}");
            let outcome = leaders.check(&keyed("orders", &key, "1"));
            assert_eq!(outcome.is_err(), partition_of(key.as_bytes(), 2) == 1, "{key}");
            assert!(leaders.check(&keyed("payments", &key, "1")).is_ok());
        }
        let mut keyless = keyed("orders", "k", "1");
        keyless.key = None;
        let error = leaders.check(&keyless).unwrap_err();
        assert_eq!((error.fault(), error.scope()), (Fault::Broker, FaultScope::Topic));
        assert!(error.to_string().contains("partition 1 of kafka topic \"orders\" has no leader"), "{error}");
    }

    /// Goal: an answer is not trusted for long, and is not asked for at each batch. Oracle: the
    /// requests.
    #[test]
    fn a_topic_is_asked_about_again_once_its_answer_is_old() {
        let cluster = Cluster::new(vec![found("orders", 1, &[])]);
        let (mut leaders, topics) = (Leaders::default(), BTreeSet::from(["orders"]));
        let begin = Instant::now();
        let mut ask_at = |after: Duration| {
            let refused = leaders.ask(&topics, begin + after, |topic| cluster.answer(topic)).unwrap();
            assert!(refused.is_empty());
            cluster.asked().len()
        };
        assert_eq!((ask_at(Duration::ZERO), ask_at(FRESH_MIN / 2)), (1, 0));
        assert_eq!(ask_at(Duration::from_secs(3_600)), 1);
    }

    /// Goal: thousands of topics cost one request. Oracle: the requests. Missing topics are asked
    /// about by name, because only that answer has a reason.
    #[test]
    fn many_topics_are_asked_about_together() {
        let names: Vec<String> = (0..2_000).map(|number| format!("orders-{number}")).collect();
        let mut existing: Vec<Found> = names.iter().map(|name| found(name, 1, &[])).collect();
        existing.push(found("of-others", 1, &[]));
        let cluster = Cluster::new(existing);
        let mut leaders = Leaders::default();
        let mut topics: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        topics.insert("missing");
        let refused = leaders.ask(&topics, Instant::now(), |topic| cluster.answer(topic)).unwrap();
        assert_eq!(refused.keys().collect::<Vec<_>>(), [&"missing"]);
        assert_eq!(refused["missing"].fault(), Fault::Operator);
        assert_eq!(cluster.asked(), [None, Some(String::from("missing"))]);
        assert_eq!(leaders.0.len(), 2_000);
        let later = Instant::now() + Duration::from_secs(3_600);
        leaders.ask(&BTreeSet::from(["orders-1"]), later, |topic| cluster.answer(topic)).unwrap();
        assert_eq!(leaders.0.len(), 1, "old answers use no memory");
    }
}
