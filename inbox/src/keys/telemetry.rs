//! Metrics of keys. Their descriptions are in the table of the inbox, `crate::telemetry::METRICS`.

use metrics::counter;

use super::id::Operation;
use super::options::OnExpired;
use super::record::Ending;

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
