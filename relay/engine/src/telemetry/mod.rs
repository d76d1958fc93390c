//! Everything the relay reports: log lines, metrics and spans.
//!
//! | module | what it holds |
//! |---|---|
//! | `table` | [`METRICS`]: name, labels and meaning of every metric |
//! | `topics` | metrics by topic |
//! | `history` | [`History`]: log lines and metrics of maintenance |
//! | `looks` | [`Looks`]: gauges from looks at the database |
//! | `spans` | [`SendSpan`]: an attempt to publish, for a recorder of spans |
//!
//! Every metric carries the label `relay`. No payload, header value or secret appears in metrics or
//! log lines. Handles of metrics belong to the recorder that is installed when a pipeline begins to
//! run: install yours first.

mod history;
mod looks;
mod spans;
mod table;
mod topics;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use message::{Fault, Message, OrderingKey, PublishError, Unrouted};
use metrics::{Counter, Gauge, counter, gauge};
use outbox_log::{ExceptionState, LogError, Parked, RelayName};
use time::OffsetDateTime;
use tracing::{debug, debug_span, error, info, warn};

use crate::event::{Event, Load, News};

pub use history::History;
pub use looks::Looks;
pub use spans::{SendFailure, SendSpan, SpanRecorder, SpansRecordedAlready, set_span_recorder};
pub use table::{LOG_LINES_DROPPED, METRICS, describe};
use topics::Topics;

/// Default maximum number of topics with their own series.
pub const TOPICS_MAX_DEFAULT: usize = 100;

/// Reports the events of one pipeline.
#[derive(Clone)]
#[doc(hidden)]
pub struct Telemetry {
    relay: Arc<str>,
    origin: Arc<str>,
    destination: Arc<str>,
    series: Arc<Series>,
    topics: Arc<Mutex<Topics>>,
    spans: Option<&'static dyn SpanRecorder>,
}

/// The series that every step updates.
struct Series {
    read: Counter,
    submitted: Counter,
    checkpoints: Counter,
    leading: Gauge,
    in_flight: Gauge,
    window_entries: Gauge,
    window_bytes: Gauge,
    blocked_keys: Gauge,
    blocked_topics: Gauge,
    busy_topics: Gauge,
    unanswered: Gauge,
}

impl Series {
    fn new(relay: &Arc<str>) -> Self {
        let count = |name: &'static str| counter!(name, "relay" => Arc::clone(relay));
        let gauge = |name: &'static str| gauge!(name, "relay" => Arc::clone(relay));
        Self {
            read: count("relay_read_total"),
            submitted: count("relay_submitted_total"),
            checkpoints: count("relay_checkpoints_total"),
            leading: gauge("relay_leading"),
            in_flight: gauge("relay_in_flight_messages"),
            window_entries: gauge("relay_window_entries"),
            window_bytes: gauge("relay_window_bytes"),
            blocked_keys: gauge("relay_blocked_keys"),
            blocked_topics: gauge("relay_blocked_topics"),
            busy_topics: gauge("relay_busy_topics"),
            unanswered: gauge("relay_unanswered_messages"),
        }
    }
}

fn faults(name: &RelayName) -> Counter {
    counter!("relay_pipeline_faults_total", "relay" => name.as_str().to_owned())
}

/// Reports a bug in this program that ended a pipeline for good.
pub(crate) fn pipeline_ended(name: &RelayName, reason: &str) {
    error!(relay = %name, "{reason}");
}

/// Reports a bug in this program that ended a run of a pipeline. Another run follows.
pub(crate) fn pipeline_restarts(name: &RelayName, reason: &str, pause: Duration) {
    error!(relay = %name, "{reason}; the pipeline restarts in {pause:.1?}, other pipelines continue");
    faults(name).increment(1);
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").field("relay", &self.relay).finish_non_exhaustive()
    }
}

impl Telemetry {
    /// Creates the reporter of the relay `name`, which reads `origin` and publishes to
    /// `destination`. At most `topics_max` topics get their own series.
    #[must_use]
    pub fn new(name: &RelayName, origin: &str, destination: &str, topics_max: usize) -> Self {
        let relay: Arc<str> = name.as_str().into();
        let series = Series::new(&relay);
        series.leading.set(0.0);
        // Created at the start, so that the first fault shows as an increase.
        faults(name).increment(0);
        Self {
            topics: Arc::new(Mutex::new(Topics::new(&relay, topics_max))),
            series: Arc::new(series),
            spans: spans::recorder(),
            relay,
            origin: origin.into(),
            destination: destination.into(),
        }
    }

    fn label(&self) -> Arc<str> {
        Arc::clone(&self.relay)
    }

    pub(crate) fn read(&self, entries: usize) {
        self.series.read.increment(entries as u64);
    }

    pub(crate) fn submitted(&self, messages: usize) {
        self.series.submitted.increment(messages as u64);
    }

    pub(crate) fn not_leading(&self) {
        self.series.leading.set(0.0);
        self.series.in_flight.set(0.0);
    }

    pub(crate) fn leading(&self, epoch: i64, taken_over_from: Option<&str>) {
        let change = if taken_over_from.is_some() { "taken_over" } else { "taken" };
        counter!("relay_lease_changes_total", "relay" => self.label(), "change" => change).increment(1);
        self.series.leading.set(1.0);
        match taken_over_from {
            Some(from) => {
                warn!(relay = %self.relay, epoch, from, "lease taken over from a relay whose lease had expired");
            }
            None => info!(relay = %self.relay, epoch, origin = %self.origin, destination = %self.destination,
                "leading"),
        }
    }

    /// Warns when a name leads for the first time beside others that no process runs. A pipeline
    /// that was renamed sends everything again, under another source.
    pub(crate) fn new_among(&self, left: &[String]) {
        if !left.is_empty() {
            warn!(relay = %self.relay, left = left.join(", "), "this relay is new here, and publishes every \
                message that the outbox still has, under its own source; no process runs the relays named \
                in `left`: if this is one of them with a new name, stop it and give the pipeline its former \
                name back; if they will not return, run relay forget");
        }
    }

    pub(crate) fn standby(&self, holder: &str) {
        info!(relay = %self.relay, holder, "standing by");
    }

    pub(crate) fn lease_lost(&self) {
        counter!("relay_lease_changes_total", "relay" => self.label(), "change" => "lost").increment(1);
        warn!(relay = %self.relay, "lease lost: another process has taken over, or the database did not answer in time");
    }

    pub(crate) fn not_publishing(&self, messages: usize) {
        warn!(relay = %self.relay, messages, "the lease may have expired: not publishing");
    }

    pub(crate) fn stores_last_mark(&self, transaction: u64, changes: usize) {
        info!(relay = %self.relay, transaction, changes, "the last transaction was committed, but its checkpoint was \
            not stored; the relay stores it now");
    }

    pub(crate) fn database_failed(&self, failure: &LogError, pause: Duration) {
        counter!("relay_database_failures_total", "relay" => self.label(), "fault" => failure.fault().as_str())
            .increment(1);
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

    /// Passes the attempt to the recorder of spans, if there is one.
    fn span(
        &self,
        message: &Message,
        took: Option<Duration>,
        ended_at: SystemTime,
        attempt: Option<u32>,
        failure: Option<SendFailure>,
    ) {
        if let Some(spans) = self.spans {
            let (relay, destination) = (&*self.relay, &*self.destination);
            let took = took.unwrap_or_default();
            spans.sent(&SendSpan { relay, destination, message, attempt, ended_at, took, failure });
        }
    }

    /// Reports events of a term. `now` is the time since the term began.
    pub fn events(&self, events: Vec<Event>, now: Duration) {
        if events.is_empty() {
            return;
        }
        let wall = OffsetDateTime::now_utc();
        let ended_at = SystemTime::from(wall);
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            match event {
                Event::Published { message, submitted_at, attempt } => {
                    let (message_id, topic) = (message.id, &message.topic);
                    let key = message.key.as_ref().map(OrderingKey::as_str);
                    let took = submitted_at.map(|at| now.saturating_sub(at));
                    self.span(&message, took, ended_at, attempt, None);
                    // Two clocks: a message that seems confirmed before it was enqueued counts as
                    // age 0.
                    let age = Duration::try_from(wall - message.time).unwrap_or_default();
                    topics.published(topic, took, age);
                    // Linked to the producer's span by the ids; the stored context itself travels
                    // on unchanged.
                    let (trace_id, traceparent) =
                        message.trace.as_ref().map(|trace| (trace.trace_id(), trace.parent())).unzip();
                    debug_span!("send", relay = %self.relay, destination = %self.destination, %topic, %message_id,
                        key, attempt, trace_id, traceparent)
                    .in_scope(|| debug!("published"));
                }
                Event::LeftOut(entries) => {
                    counter!("relay_left_out_total", "relay" => self.label()).increment(entries);
                }
                Event::Failed { message, submitted_at, attempt, fault, scope } => {
                    let took = submitted_at.map(|at| now.saturating_sub(at));
                    self.span(&message, took, ended_at, Some(attempt), Some(SendFailure { fault, scope }));
                    topics.failed(&message.topic, fault, scope);
                }
                Event::Busy { message, begins } => {
                    let topic = &message.topic;
                    topics.busy(topic);
                    if let Some(reason) = begins {
                        warn!(relay = %self.relay, %topic, "topic busy: its messages wait in order, others \
                            continue: {reason}");
                    }
                }
                Event::NotBusy { topic } => info!(relay = %self.relay, topic, "topic no longer busy"),
                Event::NamedBusy { reason } => {
                    warn!(relay = %self.relay, "endpoint busy: its messages are retried, others continue: {reason}");
                }
                Event::NamedNotBusy { reason } => {
                    info!(relay = %self.relay, "endpoint no longer busy; a minute ago: {reason}");
                }
                Event::Postponed(parked) => {
                    self.parked(&parked);
                    let Parked { message_id, topic, attempts, .. } = &*parked;
                    let (key, failure) = (parked.key.as_deref(), parked.error.as_deref().unwrap_or_default());
                    debug!(relay = %self.relay, message_id, topic, key, attempts,
                        due_in = ?parked.due_in.unwrap_or_default(), "will be retried: {failure}");
                }
                Event::Parked(parked) => {
                    self.parked(&parked);
                    let state = parked.state;
                    let (message_id, topic, attempts) = (&parked.message_id, &parked.topic, parked.attempts);
                    let key = parked.key.as_deref();
                    let failure = parked.error.as_deref().unwrap_or_default();
                    match state {
                        ExceptionState::Dead => error!(relay = %self.relay, message_id, topic, key, attempts,
                            "dead: an operator must requeue, edit or discard it: {failure}"),
                        ExceptionState::Retrying => {
                            warn!(relay = %self.relay, message_id, topic, key, attempts,
                            due_in = ?parked.due_in.unwrap_or_default(), "not published; will be retried: {failure}");
                        }
                        _ => debug!(relay = %self.relay, message_id, topic, key, %state, "parked"),
                    }
                }
                Event::TopicBlocked { topic, fault, reason } => {
                    error!(relay = %self.relay, topic, %fault, "topic stopped; others continue: {reason}");
                }
                Event::TopicUnblocked { topic } => info!(relay = %self.relay, topic, "topic continues"),
                Event::Session(News::Silent(silent)) => {
                    let seconds = silent.as_secs();
                    warn!(relay = %self.relay, destination = %self.destination, seconds,
                        "the broker confirms nothing although messages are in flight; they keep waiting: check the broker's logs and its quotas");
                }
                Event::Session(News::Answers) => {
                    info!(relay = %self.relay, destination = %self.destination, "messages are confirmed again");
                }
            }
        }
    }

    /// Counts an entry that was parked.
    fn parked(&self, parked: &Parked) {
        let cause = parked.fault.map_or("none", Fault::as_str);
        counter!("relay_parked_total", "relay" => self.label(), "state" => parked.state.as_str(), "cause" => cause)
            .increment(1);
    }

    #[expect(clippy::cast_precision_loss, reason = "gauges are floating point; counts stay far below 2^52")]
    pub(crate) fn load(&self, load: Load) {
        let series = &*self.series;
        series.in_flight.set(load.in_flight as f64);
        series.window_entries.set(load.window_entries as f64);
        series.window_bytes.set(load.window_bytes as f64);
        series.blocked_keys.set(load.blocked_keys as f64);
        series.blocked_topics.set(load.blocked_topics as f64);
        series.busy_topics.set(load.busy_topics as f64);
        series.unanswered.set(load.unanswered as f64);
    }

    /// Counts published messages that the broker routed nowhere. The adapter has logged each topic
    /// once.
    pub fn unrouted(&self, unrouted: &[Unrouted]) {
        if unrouted.is_empty() {
            return;
        }
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        unrouted.iter().for_each(|Unrouted { topic, messages }| topics.unrouted(topic, *messages));
    }

    pub(crate) fn checkpointed(&self) {
        self.series.checkpoints.increment(1);
    }

    pub(crate) fn draining(&self, in_flight: usize) {
        info!(relay = %self.relay, in_flight, "stopping: waiting for outstanding confirmations");
    }

    pub(crate) fn stopped(&self) {
        info!(relay = %self.relay, "stopped");
    }
}
