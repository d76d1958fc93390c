//! librdkafka's callbacks: log lines, errors, statistics and rebalances.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use message::{Fault, FaultScope};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{ClientConfig, ClientContext, Statistics, TopicPartitionList};

use super::config::Config;
use super::handshakes::Handshakes;
use super::inflow::Inflow;
use super::ledger::Place;
use super::log::{self, Lines};
use super::{fault, fixed, offsets};

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
        if fault::is_unreadable(code, reason) {
            state.unreadable(&text, now);
        }
        let is_over = match (fault::classify(code), code) {
            (_, Code::SSL) => !is_connected,
            ((Fault::Operator, FaultScope::Session), _) => true,
            ((Fault::Operator, FaultScope::Topic), _) => state.unavailable(code, reason),
            _ => false,
        };
        let stale = state.handshakes.failed(code, now).err().filter(|_| is_connected);
        drop(state);
        self.inflow.arrived.notify_one();
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

    /// Tells librdkafka to pause or resume. If that fails, the subscription ends, because its state
    /// is unknown.
    fn set_paused(&self, consumer: &BaseConsumer<Self>, places: &[Place], paused: bool) {
        if let Err(error) = set_paused(consumer, places, paused) {
            let verb = if paused { "pause" } else { "resume" };
            self.inflow.fail(Fault::Broker, format!("cannot {verb} partitions: {error}"));
        }
    }

    /// Handles revoked partitions: commits finished deliveries and forgets the rest.
    fn revoke(&self, consumer: &BaseConsumer<Self>, places: Vec<Place>) {
        let is_lost = consumer.assignment_lost();
        offsets::pass_markers(consumer, &self.inflow);
        let (count, mut state) = (places.len(), self.inflow.lock());
        let done = state.forget(&places);
        let resumed = state.reading.revoke(places);
        drop(state);
        self.set_paused(consumer, &resumed, false);
        if is_lost {
            self.inflow.lock().left_uncommitted |= !done.is_empty();
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
            self.inflow.lock().left_uncommitted = true;
            tracing::warn!(target: "brokers::kafka", %error, "offsets of revoked partitions not committed");
        }
    }

    /// Handles partitions that are about to be assigned. Records where they begin, so that their
    /// positions pass markers even if nothing is ever delivered.
    fn correct(&self, consumer: &BaseConsumer<Self>, places: &[Place]) {
        match offsets::correct(consumer, &self.inflow, places, self.timeout) {
            Ok(begins) => self.inflow.lock().ledger.begin(begins),
            Err(error) => self.inflow.fail(Fault::Broker, error.to_string()),
        }
    }

    /// Handles assigned partitions.
    fn assign(&self, consumer: &BaseConsumer<Self>, places: Vec<Place>) {
        tracing::info!(target: "brokers::kafka", partitions = places.len(), "partitions assigned");
        offsets::distrust_earlier(consumer, &self.inflow, &places);
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
                tracing::warn!(target: "brokers::kafka", %error, "rebalance failed; librdkafka rejoins the \
                                                                  group");
            }
        }
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(list) = rebalance {
            self.assign(consumer, places(list));
        }
    }
}
