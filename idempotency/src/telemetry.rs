//! The table of every metric of idempotency keys, [`METRICS`].

use message::Metric;
use metrics::counter;

use crate::id::Operation;
use crate::options::OnExpired;
use crate::record::Ending;

/// Every metric of this crate.
pub const METRICS: &[Metric] = &[
    Metric::counter(
        "idempotency_claims_total",
        &["operation", "result"],
        "claims of keys, by result; refused because of their time: `too_old`, `too_far_ahead`",
    ),
    Metric::counter(
        "idempotency_completed_total",
        &["operation", "ending"],
        "requests whose outcome was stored",
    ),
    Metric::counter(
        "idempotency_not_completed_total",
        &["operation"],
        "outcomes that were not stored, because the holder was late or the commit failed",
    ),
    Metric::counter(
        "idempotency_waits_total",
        &["operation", "result"],
        "requests that waited for another one with their key, by result: `answered`, `timeout`; `full` \
         if they could not wait",
    ),
    Metric::counter("idempotency_forgotten_total", &[], "expired keys deleted"),
    Metric::counter(
        "idempotency_leases_expired_total",
        &["operation", "on_expired"],
        "leases of keys that expired without an outcome; with `refuse`, an operator must decide",
    ),
];

/// Registers the descriptions; call it once, after the recorder is installed.
pub fn describe() {
    message::describe_metrics!(METRICS);
}

pub(crate) fn claimed(operation: &Operation, result: &'static str) {
    let operation = operation.as_str().to_owned();
    counter!("idempotency_claims_total", "operation" => operation, "result" => result).increment(1);
}

/// Counts a request that waited for the outcome of another one.
#[cfg(feature = "http")]
pub(crate) fn waited(operation: &Operation, result: &'static str) {
    let operation = operation.as_str().to_owned();
    counter!("idempotency_waits_total", "operation" => operation, "result" => result).increment(1);
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
    let operation = operation.as_str().to_owned();
    let on_expired = on_expired.as_str();
    counter!("idempotency_leases_expired_total", "operation" => operation, "on_expired" => on_expired)
        .increment(1);
}
