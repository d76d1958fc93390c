//! The one table of every metric of producers, [`METRICS`].

use message::token::{Drift, Stale};
use message::{Metric, MetricKind};
use metrics::{counter, describe_counter, describe_gauge, describe_histogram};

/// Every metric of this crate.
pub const METRICS: &[Metric] = &[
    Metric::counter(
        "outbox_enqueued_total",
        &[],
        "messages written to an outbox; those of transactions that are rolled back count, too",
    ),
    Metric::counter(
        "outbox_ids_refused_total",
        &["reason"],
        "supplied message ids refused by their time: `too_old`, `too_far_ahead`",
    ),
    Metric::counter("outbox_node_numbers_taken_total", &[], "node numbers taken"),
    Metric::counter(
        "outbox_node_numbers_lost_total",
        &[],
        "node numbers that somebody else got, or an operator took away",
    ),
    Metric::counter(
        "outbox_node_ids_refused_total",
        &["reason"],
        "ids that a node did not make: `no_number`, `expired`, `behind`",
    ),
];

/// Registers the descriptions; call it once, after the recorder is installed.
pub fn describe() {
    for metric in METRICS {
        match metric.kind {
            MetricKind::Counter => describe_counter!(metric.name, metric.text),
            MetricKind::Gauge => describe_gauge!(metric.name, metric.text),
            MetricKind::Histogram => describe_histogram!(metric.name, metric.text),
        }
    }
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
