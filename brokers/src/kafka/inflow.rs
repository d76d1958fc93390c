//! Carries messages from librdkafka's thread to the subscription.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use message::{Delivery, Fault, Lag, SubscriptionError};
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::{Offset, Statistics, TopicPartitionList};
use tokio::sync::Notify;

use super::ahead::Ahead;
use super::availability::Availability;
use super::cut_off::CutOff;
use super::handshakes::Handshakes;
use super::lag;
use super::ledger::{Ledger, Place};
use super::reading::Reading;
use super::starts::Starts;
use super::status::{PartitionStatus, ReadStatus};
use super::topic_ids::TopicIds;
use super::wire;

/// Maximum time for which deliveries are still settled after records that cannot be read.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// State shared by the subscription and its thread.
#[derive(Debug)]
pub(super) struct Inflow {
    state: Mutex<State>,
    /// Notified when a delivery or a failure has arrived.
    pub(super) arrived: Notify,
    pub(super) connected: AtomicBool,
}

/// Prefetched messages, unsettled ones, and what is known about the client and its topics.
#[derive(Debug)]
pub(super) struct State {
    pub(super) ahead: Ahead,
    pub(super) ledger: Ledger,
    pub(super) reading: Reading,
    pub(super) topic_ids: TopicIds,
    availability: Availability,
    pub(super) starts: Starts,
    /// Assigned partitions of topics that went missing. Their records are not taken over: they may
    /// follow others that were forgotten.
    gone: HashSet<Place>,
    cut_off: CutOff,
    pub(super) handshakes: Handshakes,
    /// The lags in librdkafka's last statistics.
    lags: Vec<Lag>,
    failure: Option<(Fault, String)>,
    /// When records that cannot be read were reported, and how.
    unreadable: Option<(Instant, String)>,
    /// Whether a partition was released without a commit of its position.
    pub(super) left_uncommitted: bool,
    pub(super) last_error: Option<String>,
}

impl Inflow {
    /// Creates an empty state for these topics, with room for `prefetch_len` prefetched messages.
    pub(super) fn new<'t>(prefetch_len: usize, topics: impl IntoIterator<Item = &'t str>) -> Self {
        let state = State {
            ahead: Ahead::new(prefetch_len),
            ledger: Ledger::default(),
            reading: Reading::default(),
            topic_ids: TopicIds::default(),
            availability: Availability::new(topics),
            starts: Starts::default(),
            gone: HashSet::new(),
            cut_off: CutOff::default(),
            handshakes: Handshakes::default(),
            lags: Vec::new(),
            failure: None,
            unreadable: None,
            left_uncommitted: false,
            last_error: None,
        };
        Self { state: Mutex::new(state), arrived: Notify::new(), connected: AtomicBool::new(false) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over a record.
    pub(super) fn push(&self, record: &BorrowedMessage<'_>) {
        let place: Place = (Arc::from(record.topic()), record.partition());
        let origin = format!("{}[{}]@{}", record.topic(), record.partition(), record.offset());
        let message = wire::read(record).map_err(|malformed| *malformed);
        let mut state = self.lock();
        if !state.takes(&place) {
            return;
        }
        let (token, redelivered) = state.ledger.deliver(&place, record.offset());
        state.reading.read(&place, Instant::now());
        state.ahead.push(Delivery { token, message, redelivered, origin });
        drop(state);
        self.arrived.notify_one();
    }

    /// Ends the subscription; only the first reason counts.
    pub(super) fn fail(&self, fault: Fault, reason: String) {
        self.lock().failure.get_or_insert((fault, reason));
        self.arrived.notify_one();
    }

    /// Fails with the reason if the subscription is over.
    pub(super) fn check(&self) -> Result<(), SubscriptionError> {
        let mut state = self.lock();
        state.end_if_unreadable(Instant::now());
        match &state.failure {
            Some((Fault::Operator, reason)) => Err(SubscriptionError::operator(reason.clone())),
            Some((_, reason)) => Err(SubscriptionError::lost(reason.clone())),
            None => Ok(()),
        }
    }

    /// Returns the current set of partitions.
    pub(super) fn status(&self) -> ReadStatus {
        let (state, now) = (self.lock(), Instant::now());
        let ago = |at: Instant| now.saturating_duration_since(at);
        let partitions = state.reading.partitions().map(|((topic, partition), at)| PartitionStatus {
            topic: topic.to_string(),
            partition: *partition,
            read_ago: at.map(ago),
        });
        let mut partitions: Vec<_> = partitions.collect();
        partitions.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
        ReadStatus {
            partitions,
            unavailable: state.availability.unavailable().map(str::to_owned).collect(),
            paused_for: state.reading.paused_since().map(ago),
            ahead_len: state.ahead.len(),
            ahead_len_peak: state.ahead.len_peak(),
            assignments: state.reading.assignments(),
        }
    }

    /// Returns the group's lag in the topics of this member's partitions.
    pub(super) fn lags(&self) -> Vec<Lag> {
        self.lock().lags.clone()
    }

    /// Returns whether this member has partitions to read.
    pub(super) fn is_assigned(&self) -> bool {
        self.lock().reading.partitions().next().is_some()
    }

    /// Records that the cluster has answered: from now on a TLS error is the network's fault and
    /// not that of the settings.
    pub(super) fn reached(&self, cluster: String) {
        self.lock().topic_ids.reached(cluster);
        self.connected.store(true, Ordering::Release);
    }

    /// Evaluates librdkafka's statistics.
    pub(super) fn told(&self, statistics: &Statistics, now: Instant) {
        let told = self.lock().told(statistics, now);
        if let Err(reason) = told {
            self.fail(Fault::Broker, reason);
        }
    }

    /// Returns the last error that librdkafka reported.
    pub(super) fn last_error(&self) -> Option<String> {
        self.lock().last_error.clone()
    }
}

impl State {
    /// Returns whether records of a partition are taken over. Others are not consumed, and must not
    /// move a position.
    fn takes(&self, place: &Place) -> bool {
        self.failure.is_none() && self.unreadable.is_none() && !self.gone.contains(place)
    }

    /// Removes prefetched deliveries that no longer belong to this member.
    pub(super) fn discard_forgotten(&mut self) {
        let ledger = &self.ledger;
        self.ahead.retain(|token| ledger.knows(token));
    }

    /// Records how far librdkafka has handed over its partitions. A partition of which it has
    /// handed over nothing since it was assigned or sought has no offset.
    pub(super) fn passed(&mut self, read: &TopicPartitionList) {
        if self.failure.is_some() || self.unreadable.is_some() {
            // The last records were not taken over.
            return;
        }
        for element in read.elements() {
            if let Offset::Offset(offset) = element.offset() {
                self.ledger.passed(&(Arc::from(element.topic()), element.partition()), offset);
            }
        }
    }

    /// Stops reading: librdkafka may pass over records that it cannot read, and does not report
    /// their partition. What came before them is still handed over and settled: otherwise the next
    /// subscription would get no further either, in any partition.
    pub(super) fn unreadable(&mut self, reason: &str, now: Instant) {
        if self.unreadable.is_none() {
            let reason = format!(
                "{reason}: records that cannot be read are not skipped; docs/operations/runbook.md says how to repair this"
            );
            tracing::error!(target: "brokers::kafka", "{reason}");
            self.unreadable = Some((now, reason));
        }
    }

    /// Ends the subscription once everything before unreadable records is settled, or after a
    /// while.
    fn end_if_unreadable(&mut self, now: Instant) {
        if let Some((at, reason)) = &self.unreadable
            && (self.ledger.is_settled() || now.saturating_duration_since(*at) >= DRAIN_MAX)
        {
            let reason = format!("{reason}{}", self.come_to(reason));
            self.failure.get_or_insert((Fault::Broker, reason));
        }
    }

    /// Names the partitions that have come to the offset in an error of librdkafka. It names no
    /// partition itself.
    fn come_to(&self, reason: &str) -> String {
        let Some(offset) = offset_in(reason) else { return String::new() };
        let mut places: Vec<String> = self
            .ledger
            .positions()
            .into_iter()
            .filter(|(_, position)| *position == offset)
            .map(|((topic, partition), _)| format!("{topic}[{partition}]"))
            .collect();
        places.sort_unstable();
        if places.is_empty() { String::new() } else { format!("; at this offset: {}", places.join(", ")) }
    }

    /// Evaluates librdkafka's statistics. Fails with the reason if the subscription is over.
    fn told(&mut self, statistics: &Statistics, now: Instant) -> Result<(), String> {
        self.lags = lag::lags(statistics);
        self.cut_off.check(statistics, now).map_err(|error| error.to_string())?;
        self.handshakes.check(statistics, now).map_err(|error| error.to_string())?;
        self.starts.check(statistics, now).map_err(|error| error.to_string())
    }

    /// Records assigned partitions. Returns those that must be paused now.
    pub(super) fn assign(&mut self, places: Vec<Place>) -> Vec<Place> {
        self.starts.assign(&places);
        self.gone.retain(|place| !places.contains(place));
        places.iter().for_each(|(topic, _)| self.availability.found(topic));
        self.reading.assign(places)
    }

    /// Records that a topic cannot be read. Returns whether no topic of the subscription can.
    pub(super) fn unavailable(&mut self, code: Code, reason: &str) -> bool {
        let topic = self.availability.lost(reason);
        if let Some(topic) = topic.filter(|_| code != Code::TopicAuthorizationFailed) {
            // It may come back as a different topic, in which these positions mean nothing.
            let places = self.places_of(&topic);
            self.forget(&places);
            self.gone.extend(places);
        }
        self.availability.is_none_left()
    }

    /// Handles a recreated topic: deliveries of the old one are no longer this group's to settle.
    /// This client would continue from the old offsets, and has old records in its queue. So the
    /// subscription ends at once, and the next one begins at the beginning (`offsets.rs`).
    pub(super) fn made_anew(&mut self, topic: &str) {
        let places = self.places_of(topic);
        self.forget(&places);
        let reason =
            format!("kafka topic {topic:?} was deleted and recreated; it is read from its beginning");
        tracing::warn!(target: "brokers::kafka", "{reason}");
        self.failure.get_or_insert((Fault::Broker, reason));
    }

    fn places_of(&self, topic: &str) -> Vec<Place> {
        let places = self.reading.partitions().map(|(place, _)| place);
        places.filter(|(name, _)| &**name == topic).cloned().collect()
    }

    /// Forgets partitions. Returns the position of each, below which everything is done.
    pub(super) fn forget(&mut self, places: &[Place]) -> Vec<(Place, i64)> {
        let done =
            places.iter().filter_map(|place| Some((place.clone(), self.ledger.forget(place)?))).collect();
        self.discard_forgotten();
        self.starts.revoke(places);
        done
    }
}

/// Returns the offset in librdkafka's report of records that cannot be read: `at offset 7`, `at 7`.
fn offset_in(reason: &str) -> Option<i64> {
    let mut words = reason.split_whitespace().peekable();
    while let Some(word) = words.next() {
        if word == "at" {
            words.next_if_eq(&"offset");
            let number = words.peek().map(|word| word.trim_end_matches([',', ':', ';']).parse());
            if let Some(Ok(offset)) = number {
                return Some(offset);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_tells_the_offset_of_what_cannot_be_read() {
        for (reason, offset) in [
            ("Unsupported Message(Set) MagicByte 57 at offset 7: records", Some(7)),
            ("Decompression (codec 0x3) of message at 12 of 66 bytes failed", Some(12)),
            ("Local: Not implemented", None),
            ("no broker at all", None),
        ] {
            assert_eq!(offset_in(reason), offset, "{reason}");
        }
    }

    #[test]
    fn records_of_a_topic_that_went_missing_are_not_taken_over() {
        let inflow = Inflow::new(10, ["orders", "invoices"]);
        let mut state = inflow.lock();
        let places = ["orders", "invoices"].map(|topic| (Arc::from(topic), 0));
        state.assign(places.to_vec());
        let missing = "Subscribed topic not available: orders: Broker: Unknown topic or partition";
        assert!(!state.unavailable(Code::UnknownTopicOrPartition, missing));
        assert!(!state.takes(&places[0]) && state.takes(&places[1]));
        state.assign(places[..1].to_vec());
        assert!(state.takes(&places[0]));
    }

    /// Goal: records that cannot be read do not hold back earlier ones. Oracle: the answers to the
    /// consumer until everything is settled, or for a while.
    #[test]
    fn what_came_before_unreadable_records_is_settled_first() {
        let place: Place = (Arc::from("orders"), 0);
        for is_settled in [true, false] {
            let inflow = Inflow::new(10, ["orders"]);
            let now = Instant::now();
            let mut state = inflow.lock();
            state.assign(vec![place.clone()]);
            let (token, _) = state.ledger.deliver(&place, 7);
            state.unreadable("kafka: unknown format at offset 8", now);
            assert!(!state.takes(&place), "what comes now lies behind them");
            state.end_if_unreadable(now);
            assert!(state.failure.is_none());
            let mut read = TopicPartitionList::new();
            read.add_partition_offset("orders", 0, Offset::Offset(9)).unwrap();
            if is_settled {
                state.ledger.done(token);
                state.passed(&read);
                state.end_if_unreadable(now);
            } else {
                state.end_if_unreadable(now + DRAIN_MAX);
            }
            let position = if is_settled { 8 } else { 7 };
            assert_eq!(state.ledger.positions(), [(place.clone(), position)]);
            drop(state);
            let error = inflow.check().unwrap_err();
            assert!(error.to_string().contains("unknown format"), "{error}");
            assert_eq!(error.to_string().contains("at this offset: orders[0]"), is_settled, "{error}");
        }
    }
}
