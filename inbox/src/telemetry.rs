//! The one table of every metric of the inbox.
//!
//! | name | kind | labels | counts |
//! |---|---|---|---|
//! | `inbox_received_total` | counter | consumer | deliveries taken from the broker |
//! | `inbox_applied_total` | counter | consumer | messages whose effect was committed |
//! | `inbox_duplicates_total` | counter | consumer | deliveries suppressed as duplicates |
//! | `inbox_skipped_total` | counter | consumer | calls for messages of unknown kinds that were skipped |
//! | `inbox_chunks_total` | counter | consumer | chunks kept until the others come |
//! | `inbox_incomplete_total` | counter | consumer | messages dead-lettered because chunks did not come in time |
//! | `inbox_refused_total` | counter | consumer, reason | messages refused before any effect; by their time: `too_old`, `from_the_future` |
//! | `inbox_failed_total` | counter | consumer | failed attempts that were counted |
//! | `inbox_timed_out_total` | counter | consumer | calls of handlers that did not end in time |
//! | `inbox_handlers_blocked` | gauge | consumer | handlers that block their thread and cannot be ended |
//! | `inbox_dead_total` | counter | consumer, reason | deliveries dead-lettered |
//! | `inbox_settled_total` | counter | consumer | deliveries acknowledged to the broker |
//! | `inbox_released_total` | counter | consumer | deliveries handed back to the broker |
//! | `inbox_outages_total` | counter | consumer | failed attempts that were not counted: the database was away, or what a handler needs |
//! | `inbox_sessions_lost_total` | counter | consumer | broker sessions lost |
//! | `inbox_held_deliveries` | gauge | consumer | deliveries received and not settled yet |
//! | `inbox_handle_seconds` | histogram | consumer | from admission to commit of one message or batch |
//! | `inbox_days_created_total` | counter | – | partitions created |
//! | `inbox_expired_total` | counter | – | days (PostgreSQL) or rows (SQLite) forgotten |
//! | `idempotency_claims_total` | counter | operation, result | claims of keys, by what they came to; refused by their time: `too_old`, `too_far_ahead` |
//! | `idempotency_completed_total` | counter | operation, ending | requests whose outcome was stored |
//! | `idempotency_not_completed_total` | counter | operation | outcomes that were not stored: late holders, failed commits |
//! | `idempotency_forgotten_total` | counter | – | expired keys deleted |
//! | `idempotency_leases_expired_total` | counter | operation, on_expired | holders on lease that are gone; with `refuse` an operator has to decide |

use std::time::Duration;

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use crate::dead_letter::Reason;
use crate::keys::{Ending, OnExpired, Operation};
use crate::name::ConsumerName;
use crate::refusal::Refusal;

/// Registers the descriptions; call it once, after the recorder is installed.
pub fn describe() {
    for (name, text) in [
        ("inbox_received_total", "Deliveries taken from the broker"),
        ("inbox_applied_total", "Messages whose effect was committed"),
        ("inbox_duplicates_total", "Deliveries suppressed as duplicates"),
        ("inbox_skipped_total", "Messages of unknown kinds that were skipped"),
        ("inbox_chunks_total", "Chunks kept until the others come"),
        ("inbox_incomplete_total", "Messages of which chunks did not come in time"),
        ("inbox_refused_total", "Messages refused before any effect"),
        ("inbox_failed_total", "Failed attempts that were counted"),
        ("inbox_timed_out_total", "Calls of handlers that did not end in time"),
        ("inbox_dead_total", "Deliveries dead-lettered"),
        ("inbox_settled_total", "Deliveries acknowledged to the broker"),
        ("inbox_released_total", "Deliveries handed back to the broker"),
        ("inbox_outages_total", "Failed attempts that were not counted"),
        ("inbox_sessions_lost_total", "Broker sessions lost"),
        ("inbox_days_created_total", "Partitions created"),
        ("inbox_expired_total", "Days or rows forgotten"),
        ("idempotency_claims_total", "Claims of idempotency keys"),
        ("idempotency_completed_total", "Requests whose outcome was stored"),
        ("idempotency_not_completed_total", "Outcomes of requests that were not stored"),
        ("idempotency_forgotten_total", "Expired idempotency keys deleted"),
        ("idempotency_leases_expired_total", "Holders of idempotency keys that are gone"),
    ] {
        describe_counter!(name, text);
    }
    describe_gauge!("inbox_held_deliveries", "Deliveries received and not settled yet");
    describe_gauge!("inbox_handlers_blocked", "Handlers that block their thread and cannot be ended");
    describe_histogram!(
        "inbox_handle_seconds",
        metrics::Unit::Seconds,
        "From admission to commit of one message or batch"
    );
}

/// The counters of one consumer.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    consumer: String,
}

impl Meter {
    pub(crate) fn new(consumer: &ConsumerName) -> Self {
        Self { consumer: consumer.as_str().to_owned() }
    }

    pub(crate) fn received(&self, deliveries: usize) {
        self.count("inbox_received_total", deliveries);
    }

    pub(crate) fn applied(&self, messages: usize, took: Duration) {
        self.count("inbox_applied_total", messages);
        histogram!("inbox_handle_seconds", "consumer" => self.consumer.clone()).record(took);
    }

    pub(crate) fn duplicates(&self, deliveries: usize) {
        self.count("inbox_duplicates_total", deliveries);
    }

    pub(crate) fn skipped(&self) {
        self.count("inbox_skipped_total", 1);
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
        gauge!("inbox_handlers_blocked", "consumer" => self.consumer.clone()).set(handlers as f64);
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
        gauge!("inbox_held_deliveries", "consumer" => self.consumer.clone()).set(deliveries as f64);
    }

    fn count(&self, name: &'static str, by: usize) {
        counter!(name, "consumer" => self.consumer.clone()).increment(by as u64);
    }

    fn count_reason(&self, name: &'static str, reason: Reason) {
        counter!(name, "consumer" => self.consumer.clone(), "reason" => reason.as_str()).increment(1);
    }
}

/// A message expired with missing chunks; by maintenance, for whichever consumer it was.
pub(crate) fn incomplete(consumer: &str) {
    let reason = Reason::Incomplete.as_str();
    counter!("inbox_incomplete_total", "consumer" => consumer.to_owned()).increment(1);
    counter!("inbox_dead_total", "consumer" => consumer.to_owned(), "reason" => reason).increment(1);
}

/// A message that the guard did not let through, whoever asked it.
pub(crate) fn refused(consumer: &ConsumerName, refusal: &Refusal) {
    Meter::new(consumer).refused(Reason::from(refusal));
}

pub(crate) fn maintained(created: u64, expired: u64) {
    counter!("inbox_days_created_total").increment(created);
    counter!("inbox_expired_total").increment(expired);
}

pub(crate) fn claimed(operation: &Operation, result: &'static str) {
    let operation = operation.as_str().to_owned();
    counter!("idempotency_claims_total", "operation" => operation, "result" => result).increment(1);
}

pub(crate) fn completed(operation: &Operation, ending: Ending, is_stored: bool) {
    let operation = operation.as_str().to_owned();
    if !is_stored {
        counter!("idempotency_not_completed_total", "operation" => operation).increment(1);
        return;
    }
    let ending = match ending {
        Ending::Succeeded => "succeeded",
        Ending::Failed => "failed",
    };
    counter!("idempotency_completed_total", "operation" => operation, "ending" => ending).increment(1);
}

pub(crate) fn forgotten(keys: u64) {
    counter!("idempotency_forgotten_total").increment(keys);
}

pub(crate) fn lease_expired(operation: &Operation, on_expired: OnExpired) {
    let (operation, on_expired) = (operation.as_str().to_owned(), on_expired.as_str());
    counter!("idempotency_leases_expired_total", "operation" => operation, "on_expired" => on_expired)
        .increment(1);
}
