//! The table of every metric of the inbox, [`METRICS`].

use std::sync::Arc;
use std::time::Duration;

use message::Metric;
use metrics::{counter, gauge, histogram};

use crate::activity::{Counts, Tally};
use crate::dead_letters::Reason;
use crate::ids::ConsumerName;
use crate::refusal::Refusal;

/// Every metric of this crate.
pub const METRICS: &[Metric] = &[
    Metric::counter("inbox_received_total", &["consumer"], "deliveries received from the broker"),
    Metric::counter("inbox_applied_total", &["consumer"], "messages whose effect was committed"),
    Metric::counter("inbox_duplicates_total", &["consumer"], "deliveries suppressed as duplicates"),
    Metric::counter("inbox_skipped_total", &["consumer"], "messages skipped because their kind is unknown"),
    Metric::counter(
        "inbox_erased_total",
        &["consumer"],
        "messages skipped because the key of their subject was deleted",
    ),
    Metric::counter(
        "inbox_chunks_total",
        &["consumer"],
        "chunks stored until the rest of their message arrives",
    ),
    Metric::counter(
        "inbox_incomplete_total",
        &["consumer"],
        "messages dead-lettered because some chunks did not arrive in time",
    ),
    Metric::counter(
        "inbox_refused_total",
        &["consumer", "reason"],
        "messages refused before any effect; because of their time: `too_old`, `from_the_future`",
    ),
    Metric::counter("inbox_failed_total", &["consumer"], "failed attempts that were counted"),
    Metric::counter("inbox_timed_out_total", &["consumer"], "handler calls that exceeded their timeout"),
    Metric::gauge(
        "inbox_handlers_blocked",
        &["consumer"],
        "handlers that block their thread and cannot be stopped",
    ),
    Metric::counter(
        "inbox_dead_total",
        &["consumer", "reason"],
        "deliveries dead-lettered; `held` messages wait behind a dead letter of their key, and are counted \
         again if they fail",
    ),
    Metric::counter("inbox_settled_total", &["consumer"], "deliveries acknowledged to the broker"),
    Metric::counter("inbox_released_total", &["consumer"], "deliveries handed back to the broker"),
    Metric::counter(
        "inbox_outages_total",
        &["consumer"],
        "failed attempts that were not counted, because the database or another service that the handler \
         needs was unavailable",
    ),
    Metric::counter("inbox_sessions_lost_total", &["consumer"], "broker sessions lost"),
    Metric::gauge("inbox_held_deliveries", &["consumer"], "deliveries received and not settled yet"),
    Metric::gauge(
        "inbox_lag_messages",
        &["consumer", "topic"],
        "messages waiting at the broker for this consumer, if the broker reports them; `NaN` while unknown",
    ),
    Metric::histogram(
        "inbox_handle_seconds",
        &["consumer"],
        "time from admission to commit of one message or batch",
    ),
    Metric::counter("inbox_days_created_total", &[], "partitions created"),
    Metric::counter("inbox_expired_total", &[], "expired days (PostgreSQL) or rows (SQLite) deleted"),
    Metric::counter(
        "inbox_maintenance_failures_total",
        &["part"],
        "parts of the inbox's maintenance that failed; the next maintenance retries them",
    ),
];

/// Registers the descriptions; call it once, after the recorder is installed.
pub fn describe() {
    message::describe_metrics!(METRICS);
}

/// The counters of one consumer.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    consumer: Arc<str>,
    tally: Tally,
}

impl Meter {
    pub(crate) fn new(consumer: &ConsumerName) -> Self {
        Self { consumer: consumer.as_str().into(), tally: Tally::default() }
    }

    /// Returns the counts that will be stored in the database.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    pub(crate) fn received(&self, deliveries: usize) {
        self.count("inbox_received_total", deliveries);
    }

    pub(crate) fn applied(&self, messages: usize, took: Duration) {
        self.count("inbox_applied_total", messages);
        self.tally.add(Counts { applied: messages as u64, duplicates: 0 });
        histogram!("inbox_handle_seconds", "consumer" => Arc::clone(&self.consumer)).record(took);
    }

    pub(crate) fn duplicates(&self, deliveries: usize) {
        self.count("inbox_duplicates_total", deliveries);
        self.tally.add(Counts { applied: 0, duplicates: deliveries as u64 });
    }

    pub(crate) fn skipped(&self) {
        self.count("inbox_skipped_total", 1);
    }

    pub(crate) fn erased(&self) {
        self.count("inbox_erased_total", 1);
    }

    pub(crate) fn chunk(&self) {
        self.count("inbox_chunks_total", 1);
    }

    pub(crate) fn refused(&self, reason: Reason) {
        self.count_reason("inbox_refused_total", reason);
    }

    pub(crate) fn failed(&self) {
        self.count("inbox_failed_total", 1);
    }

    pub(crate) fn timed_out(&self) {
        self.count("inbox_timed_out_total", 1);
    }

    pub(crate) fn blocked(&self, handlers: usize) {
        gauge!("inbox_handlers_blocked", "consumer" => Arc::clone(&self.consumer)).set(handlers as f64);
    }

    pub(crate) fn dead(&self, reason: Reason) {
        self.count_reason("inbox_dead_total", reason);
    }

    pub(crate) fn settled(&self, deliveries: usize) {
        self.count("inbox_settled_total", deliveries);
    }

    pub(crate) fn released(&self, deliveries: usize) {
        self.count("inbox_released_total", deliveries);
    }

    pub(crate) fn outage(&self) {
        self.count("inbox_outages_total", 1);
    }

    pub(crate) fn session_lost(&self) {
        self.count("inbox_sessions_lost_total", 1);
    }

    pub(crate) fn held(&self, deliveries: usize) {
        gauge!("inbox_held_deliveries", "consumer" => Arc::clone(&self.consumer)).set(deliveries as f64);
    }

    fn count(&self, name: &'static str, by: usize) {
        counter!(name, "consumer" => Arc::clone(&self.consumer)).increment(by as u64);
    }

    fn count_reason(&self, name: &'static str, reason: Reason) {
        counter!(name, "consumer" => Arc::clone(&self.consumer), "reason" => reason.as_str()).increment(1);
    }
}

/// Counts a message that maintenance expired with missing chunks, of any consumer.
pub(crate) fn incomplete(consumer: &str) {
    let reason = Reason::Incomplete.as_str();
    counter!("inbox_incomplete_total", "consumer" => consumer.to_owned()).increment(1);
    counter!("inbox_dead_total", "consumer" => consumer.to_owned(), "reason" => reason).increment(1);
}

/// Counts a message that the guard refused, for any caller.
pub(crate) fn refused(consumer: &ConsumerName, refusal: &Refusal) {
    Meter::new(consumer).refused(Reason::from(refusal));
}

/// Counts a failed part of maintenance.
pub(crate) fn not_maintained(part: &'static str) {
    counter!("inbox_maintenance_failures_total", "part" => part).increment(1);
}

pub(crate) fn maintained(created: u64, expired: u64) {
    counter!("inbox_days_created_total").increment(created);
    counter!("inbox_expired_total").increment(expired);
}
