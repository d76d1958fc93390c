//! Everything the relay tells: the one table of log events and metrics.
//!
//! | metric | kind | meaning |
//! |---|---|---|
//! | `relay_published_total` | counter | messages that the broker confirmed |
//! | `relay_publish_failures_total` | counter, by fault and scope | receipts that were not a confirmation |
//! | `relay_parked_total` | counter, by state | entries parked |
//! | `relay_checkpoints_total` | counter | cursors stored |
//! | `relay_lease_changes_total` | counter, by change | leases taken, taken over, lost |
//! | `relay_sessions_total` | counter, by outcome | broker sessions opened and refused |
//! | `relay_window_entries`, `relay_window_bytes` | gauge | read and not yet settled |
//! | `relay_expired_segments_total` | counter | segments of history that were emptied |
//! | `relay_maintenance_faults_total` | counter | how often a fault of this program ended maintenance, which began anew |
//! | `relay_history_seconds` | gauge | the age of the oldest entry in the outbox |
//! | `relay_history_bytes` | gauge | what the outbox takes on disk, where the database tells |
//! | `relay_blocked_keys`, `relay_blocked_topics` | gauge | keys and topics that wait |
//! | `relay_unanswered_messages` | gauge | messages given up waiting for, which the broker may still answer |
//!
//! Every metric carries the label `relay`. No payload, header value or secret appears in either.

use std::sync::Arc;
use std::time::Duration;

use message::{Fault, PublishError, Receipt};
use metrics::{counter, describe_counter, describe_gauge, gauge};
use outbox::log::{ExceptionState, LogError, RelayName};
use outbox::retention::{Expired, Segment};
use tracing::{debug, debug_span, error, info, warn};

use crate::engine::machine::{Event, Machine};

/// Registers the descriptions; call it once, after the recorder is installed.
pub fn describe() {
    for (name, text) in [
        ("relay_published_total", "Messages that the broker confirmed"),
        ("relay_publish_failures_total", "Receipts that were not a confirmation"),
        ("relay_parked_total", "Entries parked"),
        ("relay_checkpoints_total", "Cursors stored"),
        ("relay_lease_changes_total", "Leases taken, taken over, lost"),
        ("relay_sessions_total", "Broker sessions opened and refused"),
        ("relay_expired_segments_total", "Segments of history that were emptied"),
        ("relay_maintenance_faults_total", "Faults of this program that ended maintenance"),
    ] {
        describe_counter!(name, text);
    }
    for (name, text) in [
        ("relay_window_entries", "Entries read and not yet settled"),
        ("relay_window_bytes", "Bytes read and not yet settled"),
        ("relay_history_seconds", "The age of the oldest entry in the outbox"),
        ("relay_history_bytes", "Bytes that the outbox takes on disk"),
        ("relay_blocked_keys", "Keys that wait"),
        ("relay_blocked_topics", "Topics that wait"),
        ("relay_unanswered_messages", "Messages given up waiting for, which the broker may still answer"),
    ] {
        describe_gauge!(name, text);
    }
}

/// The voice of one pipeline.
#[derive(Debug, Clone)]
pub struct Telemetry {
    relay: Arc<str>,
    origin: Arc<str>,
    destination: Arc<str>,
}

impl Telemetry {
    /// The voice of the relay `name`, which reads `origin` and publishes to `destination`.
    #[must_use]
    pub fn new(name: &RelayName, origin: &str, destination: &str) -> Self {
        Self { relay: name.as_str().into(), origin: origin.into(), destination: destination.into() }
    }

    fn label(&self) -> String {
        self.relay.to_string()
    }

    pub(crate) fn leading(&self, epoch: i64, taken_over_from: Option<&str>) {
        let change = if taken_over_from.is_some() { "taken_over" } else { "taken" };
        counter!("relay_lease_changes_total", "relay" => self.label(), "change" => change).increment(1);
        match taken_over_from {
            Some(from) => {
                warn!(relay = %self.relay, epoch, from, "lease taken over from a relay that let it expire");
            }
            None => info!(relay = %self.relay, epoch, origin = %self.origin, destination = %self.destination,
                "leading"),
        }
    }

    pub(crate) fn standby(&self, holder: &str) {
        debug!(relay = %self.relay, holder, "standing by");
    }

    pub(crate) fn lease_lost(&self) {
        counter!("relay_lease_changes_total", "relay" => self.label(), "change" => "lost").increment(1);
        warn!(relay = %self.relay, "lease lost: another process has taken over, or the database was silent too long");
    }

    pub(crate) fn database_failed(&self, failure: &LogError, pause: Duration) {
        match failure.fault() {
            Fault::Operator => error!(relay = %self.relay, origin = %self.origin, ?pause, "{failure}"),
            _ => warn!(relay = %self.relay, origin = %self.origin, ?pause, "{failure}"),
        }
    }

    pub(crate) fn connected(&self) {
        counter!("relay_sessions_total", "relay" => self.label(), "outcome" => "opened").increment(1);
        info!(relay = %self.relay, destination = %self.destination, "connected");
    }

    pub(crate) fn disconnected(&self) {
        warn!(relay = %self.relay, destination = %self.destination, "session ended; unconfirmed messages are sent again");
    }

    pub(crate) fn refused(&self, failure: &PublishError, pause: Duration) {
        counter!("relay_sessions_total", "relay" => self.label(), "outcome" => "refused").increment(1);
        match failure.fault() {
            Fault::Operator => {
                error!(relay = %self.relay, destination = %self.destination, ?pause, "{failure}");
            }
            _ => warn!(relay = %self.relay, destination = %self.destination, ?pause, "{failure}"),
        }
    }

    pub(crate) fn receipt(&self, receipt: &Receipt) {
        if let Err(failure) = &receipt.outcome {
            let (fault, scope) = (failure.fault().as_str(), failure.scope().as_str());
            counter!("relay_publish_failures_total", "relay" => self.label(), "fault" => fault, "scope" => scope)
                .increment(1);
        }
    }

    pub(crate) fn events(&self, events: Vec<Event>) {
        let mut published = 0;
        for event in events {
            match event {
                Event::Published(message) => {
                    published += 1;
                    let (message_id, topic) = (message.id, &message.topic);
                    // Linked to the producer's span by the ids; the stored context itself travels
                    // on unchanged.
                    let (trace_id, traceparent) =
                        message.trace.as_ref().map(|trace| (trace.trace_id(), trace.parent())).unzip();
                    debug_span!("send", relay = %self.relay, destination = %self.destination, %topic, %message_id,
                        trace_id, traceparent)
                    .in_scope(|| debug!("published"));
                }
                Event::Parked(parked) => {
                    let state = parked.state;
                    counter!("relay_parked_total", "relay" => self.label(), "state" => state.as_str())
                        .increment(1);
                    let (message_id, topic, attempts) = (&parked.message_id, &parked.topic, parked.attempts);
                    let failure = parked.error.as_deref().unwrap_or_default();
                    match state {
                        ExceptionState::Dead => error!(relay = %self.relay, message_id, topic, attempts,
                            "dead: an operator must requeue, edit or discard it: {failure}"),
                        ExceptionState::Retrying => warn!(relay = %self.relay, message_id, topic, attempts,
                            due_in = ?parked.due_in, "not published, tried again: {failure}"),
                        _ => debug!(relay = %self.relay, message_id, topic, %state, "parked"),
                    }
                }
                Event::TopicBlocked { topic, fault, reason } => {
                    error!(relay = %self.relay, topic, %fault, "topic stopped, others flow: {reason}");
                }
                Event::TopicUnblocked { topic } => info!(relay = %self.relay, topic, "topic flows again"),
            }
        }
        if published > 0 {
            counter!("relay_published_total", "relay" => self.label()).increment(published);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "gauges are floating point; counts stay far below 2^52")]
    pub(crate) fn gauges(&self, machine: &Machine) {
        let (keys, topics) = machine.blocked();
        for (name, value) in [
            ("relay_window_entries", machine.open_len()),
            ("relay_window_bytes", machine.open_bytes()),
            ("relay_blocked_keys", keys),
            ("relay_blocked_topics", topics),
            ("relay_unanswered_messages", machine.awaited_len()),
        ] {
            gauge!(name, "relay" => self.label()).set(value as f64);
        }
    }

    pub(crate) fn checkpointed(&self) {
        counter!("relay_checkpoints_total", "relay" => self.label()).increment(1);
    }

    pub(crate) fn draining(&self, in_flight: usize) {
        info!(relay = %self.relay, in_flight, "stopping: waiting for outstanding confirmations");
    }

    pub(crate) fn stopped(&self) {
        info!(relay = %self.relay, "stopped");
    }
}

/// The voice of the maintenance of one pipeline's outbox.
#[derive(Debug, Clone)]
pub struct History {
    relay: Arc<str>,
    /// The failure or obstacle that was reported last. Each is reported once, until something
    /// changes.
    told: String,
}

impl History {
    /// The voice of the outbox that the relay `name` reads.
    #[must_use]
    pub fn new(name: &RelayName) -> Self {
        Self { relay: name.as_str().into(), told: String::new() }
    }

    pub(crate) fn expired(&self, expired: Expired) {
        if expired.segments > 0 {
            counter!("relay_expired_segments_total", "relay" => self.relay.to_string())
                .increment(expired.segments);
            info!(relay = %self.relay, segments = expired.segments, rows = expired.rows, bytes = expired.bytes,
                "old history removed");
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "gauges are floating point; sizes stay far below 2^52")]
    pub(crate) fn segments(&mut self, segments: &[Segment]) {
        let oldest = segments.iter().filter_map(|segment| segment.oldest_age).max().unwrap_or_default();
        gauge!("relay_history_seconds", "relay" => self.relay.to_string()).set(oldest.as_secs_f64());
        let sizes: Option<Vec<u64>> = segments.iter().map(|segment| segment.bytes).collect();
        if let Some(sizes) = sizes {
            let bytes = sizes.iter().sum::<u64>();
            gauge!("relay_history_bytes", "relay" => self.relay.to_string()).set(bytes as f64);
        }
        let reasons = segments.iter().filter_map(|segment| segment.held_back.as_ref());
        let obstacle = reasons.filter(|reason| reason.needs_attention()).map(ToString::to_string).next();
        self.tell(obstacle.map(|obstacle| format!("old history stays: {obstacle}")));
    }

    pub(crate) fn failed(&mut self, failure: &LogError) {
        self.tell(Some(format!("old history could not be removed: {failure}")));
    }

    pub(crate) fn ended(&self, fault: &tokio::task::JoinError) {
        counter!("relay_maintenance_faults_total", "relay" => self.relay.to_string()).increment(1);
        warn!(relay = %self.relay, "maintenance ended by a fault of this program and begins anew: {fault}");
    }

    fn tell(&mut self, text: Option<String>) {
        let text = text.unwrap_or_default();
        if !text.is_empty() && text != self.told {
            warn!(relay = %self.relay, "{text}");
        }
        self.told = text;
    }
}
