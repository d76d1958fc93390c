//! The metrics of producers, in the one table [`METRICS`].

use message::Metric;
use message::token::{Drift, Stale};
use metrics::counter;

/// All metrics of this crate.
pub const METRICS: &[Metric] = &[
    Metric::counter(
        "outbox_enqueued_total",
        &[],
        "messages written to an outbox, including those of transactions that are rolled back",
    ),
    Metric::counter(
        "outbox_ids_refused_total",
        &["reason"],
        "supplied message ids refused because of their time: `too_old`, `too_far_ahead`",
    ),
    Metric::counter("outbox_node_numbers_taken_total", &[], "node numbers taken"),
    Metric::counter(
        "outbox_node_numbers_lost_total",
        &[],
        "node numbers that another process took, or that an operator revoked",
    ),
    Metric::counter(
        "outbox_node_ids_refused_total",
        &["reason"],
        "ids that a node did not generate: `no_number`, `expired`, `behind`",
    ),
];

/// Registers the descriptions. Call it once, after the recorder is installed.
pub fn describe() {
    message::describe_metrics!(METRICS);
}

pub(crate) fn enqueued(messages: usize) {
    counter!("outbox_enqueued_total").increment(messages as u64);
}

pub(crate) fn id_refused(drift: &Drift) {
    counter!("outbox_ids_refused_total", "reason" => drift.as_str()).increment(1);
}

pub(crate) fn number_taken() {
    counter!("outbox_node_numbers_taken_total").increment(1);
}

pub(crate) fn number_lost() {
    counter!("outbox_node_numbers_lost_total").increment(1);
}

pub(crate) fn node_refused(stale: &Stale) {
    counter!("outbox_node_ids_refused_total", "reason" => stale.as_str()).increment(1);
}
