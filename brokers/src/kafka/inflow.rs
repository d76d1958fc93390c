//! Carries messages from librdkafka's thread to the subscription, and holds librdkafka's callbacks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use message::{Delivery, Fault, FaultScope, Lag, SubscriptionError};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::{ClientConfig, ClientContext, Offset, Statistics, TopicPartitionList};
use tokio::sync::Notify;

use super::ahead::Ahead;
use super::availability::Availability;
use super::config::Config;
use super::cut_off::CutOff;
use super::fault;
use super::fixed;
use super::handshakes::Handshakes;
use super::lag;
use super::ledger::{Ledger, Place};
use super::log::{self, Lines};
use super::offsets;
use super::reading::Reading;
use super::starts::Starts;
use super::status::{PartitionStatus, ReadStatus};
use super::topic_ids::TopicIds;
use super::wire;

/// State shared by the subscription and its thread.
#[derive(Debug)]
pub(super) struct Inflow {
    state: Mutex<State>,
    /// Notified when a delivery or a failure has arrived.
    pub(super) arrived: Notify,
    connected: AtomicBool,
}

/// Prefetched messages, unsettled ones, and what is known about the client and its topics.
#[derive(Debug)]
pub(super) struct State {
    pub(super) ahead: Ahead,
    pub(super) ledger: Ledger,
    pub(super) reading: Reading,
    pub(super) topic_ids: TopicIds,
    availability: Availability,
    starts: Starts,
    cut_off: CutOff,
    handshakes: Handshakes,
    /// The lags in librdkafka's last statistics.
    lags: Vec<Lag>,
    failure: Option<(Fault, String)>,
    last_error: Option<String>,
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
            cut_off: CutOff::default(),
            handshakes: Handshakes::default(),
            lags: Vec::new(),
            failure: None,
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
        if state.failure.is_some() {
            // The subscription is over: the record is not consumed and must not move a position.
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
        match &self.lock().failure {
            Some((Fault::Operator, reason)) => Err(SubscriptionError::operator(reason.clone())),
            Some((_, reason)) => Err(SubscriptionError::lost(reason.clone())),
            None => Ok(()),
        }
    }

    /// Returns what is being read now.
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
    /// Removes prefetched deliveries that no longer belong to this member.
    pub(super) fn discard_forgotten(&mut self) {
        let ledger = &self.ledger;
        self.ahead.retain(|token| ledger.knows(token));
    }

    /// Records how far librdkafka has handed over its partitions, without an offset for those of
    /// which it has handed over nothing since they were assigned or sought.
    pub(super) fn passed(&mut self, read: &TopicPartitionList) {
        if self.failure.is_some() {
            // The last records were not taken over.
            return;
        }
        for element in read.elements() {
            if let Offset::Offset(offset) = element.offset() {
                self.ledger.passed(&(Arc::from(element.topic()), element.partition()), offset);
            }
        }
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
        places.iter().for_each(|(topic, _)| self.availability.found(topic));
        self.reading.assign(places)
    }

    /// Records that a topic cannot be read. Returns whether no topic of the subscription can.
    fn unavailable(&mut self, code: Code, reason: &str) -> bool {
        let topic = self.availability.lost(reason);
        if let Some(topic) = topic.filter(|_| code != Code::TopicAuthorizationFailed) {
            // It may come back as a different topic, in which these positions mean nothing.
            let places = self.places_of(&topic);
            self.forget(&places);
        }
        self.availability.is_none_left()
    }

    /// Handles a recreated topic: deliveries of the old one are no longer this group's to settle.
    /// This client would continue from the old offsets, and has old records in its queue. So the
    /// subscription ends at once, and the next one begins at the beginning (`offsets.rs`).
    fn made_anew(&mut self, topic: &str) {
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
    fn forget(&mut self, places: &[Place]) -> Vec<(Place, i64)> {
        let done =
            places.iter().filter_map(|place| Some((place.clone(), self.ledger.forget(place)?))).collect();
        self.discard_forgotten();
        self.starts.revoke(places);
        done
    }
}

/// Returns the partitions of a list.
pub(super) fn places(list: &TopicPartitionList) -> Vec<Place> {
    let elements = list.elements();
    elements.iter().map(|element| (Arc::from(element.topic()), element.partition())).collect()
}

/// Pauses or resumes partitions in librdkafka.
pub(super) fn set_paused(
    consumer: &BaseConsumer<Callbacks>,
    places: &[Place],
    paused: bool,
) -> Result<(), KafkaError> {
    if places.is_empty() {
        return Ok(());
    }
    let mut list = TopicPartitionList::with_capacity(places.len());
    for (topic, partition) in places {
        list.add_partition(topic, *partition);
    }
    if !paused {
        // A partition that librdkafka does not know is not paused.
        return consumer.resume(&list);
    }
    consumer.pause(&list)?;
    // The call as a whole succeeds even when librdkafka skips a partition.
    list.elements().iter().try_for_each(|element| element.error())
}

/// librdkafka's callbacks, all on the subscription's own thread.
#[derive(Debug)]
pub(super) struct Callbacks {
    inflow: Arc<Inflow>,
    /// Maximum time for an answer of the cluster.
    timeout: Duration,
    lines: Lines,
    /// The group of a reader of fixed partitions.
    group_of_fixed: Option<String>,
}

impl ClientContext for Callbacks {
    fn stats(&self, statistics: Statistics) {
        self.inflow.told(&statistics, Instant::now());
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        if let Some(told) = log::topic_id(facility, text) {
            let mut state = self.inflow.lock();
            if state.topic_ids.note(told.topic, told.id) {
                state.made_anew(told.topic);
                drop(state);
                self.inflow.arrived.notify_one();
            }
        }
        if let Some(group) = self.group_of_fixed.as_ref().filter(|_| fixed::is_refusal(facility, text)) {
            self.inflow.fail(Fault::Operator, fixed::refusal(group));
        }
        self.lines.forward(level, facility, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let Some(code) = log::error(&error, reason) else { return };
        let (text, now) = (fault::describe(code, reason), Instant::now());
        let is_connected = self.inflow.connected.load(Ordering::Acquire);
        let mut state = self.inflow.lock();
        if code != Code::AllBrokersDown {
            state.last_error = Some(text.clone());
        }
        state.starts.error(code, reason, now);
        let is_over = match (fault::classify(code), code) {
            (_, Code::SSL) => !is_connected,
            ((Fault::Operator, FaultScope::Session), _) => true,
            ((Fault::Operator, FaultScope::Topic), _) => state.unavailable(code, reason),
            _ => false,
        };
        let stale = state.handshakes.failed(code, now).err().filter(|_| is_connected);
        drop(state);
        if is_over {
            self.inflow.fail(Fault::Operator, text);
        } else if let Some(stale) = stale {
            self.inflow.fail(Fault::Broker, format!("{stale}; {text}"));
        }
    }
}

impl Callbacks {
    /// Creates the callbacks of a client that is about to be created with this configuration. Reads
    /// the certificate files. A reader of fixed partitions gives its group.
    pub(super) fn new(
        inflow: Arc<Inflow>,
        config: &Config,
        client: &mut ClientConfig,
        group_of_fixed: Option<String>,
    ) -> Self {
        inflow.lock().handshakes = Handshakes::of(config);
        Self { inflow, timeout: config.connect_timeout(), lines: Lines::of(client), group_of_fixed }
    }

    /// Tells librdkafka to pause or resume. If that fails, the subscription is over, because its
    /// state is unknown.
    fn set_paused(&self, consumer: &BaseConsumer<Self>, places: &[Place], paused: bool) {
        if let Err(error) = set_paused(consumer, places, paused) {
            let verb = if paused { "pause" } else { "resume" };
            self.inflow.fail(Fault::Broker, format!("cannot {verb} partitions: {error}"));
        }
    }

    /// Handles revoked partitions: commits what is done and forgets the rest.
    fn revoke(&self, consumer: &BaseConsumer<Self>, places: Vec<Place>) {
        let is_lost = consumer.assignment_lost();
        let (count, mut state) = (places.len(), self.inflow.lock());
        let done = state.forget(&places);
        let resumed = state.reading.revoke(places);
        drop(state);
        self.set_paused(consumer, &resumed, false);
        if is_lost {
            // The next owner receives uncommitted messages again, and the inbox recognizes them.
            tracing::warn!(target: "brokers::kafka", partitions = count, "the group removed this member: other members have its partitions now");
            return;
        }
        tracing::info!(target: "brokers::kafka", partitions = count, "partitions revoked");
        if done.is_empty() {
            return;
        }
        let committed = offsets::commit(consumer, &self.inflow, &done, CommitMode::Sync);
        if let Err(error) = committed {
            tracing::warn!(target: "brokers::kafka", %error, "offsets of revoked partitions not committed");
        }
    }

    /// Handles partitions that are about to be assigned.
    fn correct(&self, consumer: &BaseConsumer<Self>, places: &[Place]) {
        if let Err(error) = offsets::correct(consumer, &self.inflow, places, self.timeout) {
            self.inflow.fail(Fault::Broker, error.to_string());
        }
    }

    /// Handles assigned partitions.
    fn assign(&self, consumer: &BaseConsumer<Self>, places: Vec<Place>) {
        tracing::info!(target: "brokers::kafka", partitions = places.len(), "partitions assigned");
        let paused = self.inflow.lock().assign(places);
        self.set_paused(consumer, &paused, true);
    }
}

impl ConsumerContext for Callbacks {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Revoke(list) => self.revoke(consumer, places(list)),
            Rebalance::Assign(list) => self.correct(consumer, &places(list)),
            Rebalance::Error(error) => {
                tracing::warn!(target: "brokers::kafka", %error, "rebalance failed; librdkafka joins again");
            }
        }
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(list) = rebalance {
            self.assign(consumer, places(list));
        }
    }
}
