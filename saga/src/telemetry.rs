//! The table of all metrics of sagas, [`METRICS`].

use std::time::Duration;

use message::Metric;
use metrics::{counter, gauge, histogram};

use crate::dialect::Replied;
use crate::record::{State, StepKind};

/// Every metric of this crate.
pub const METRICS: &[Metric] = &[
    Metric::counter(
        "saga_started_total",
        &["type"],
        "sagas started, including those of transactions that are rolled back",
    ),
    Metric::counter("saga_ended_total", &["type", "state"], "sagas that finished, or were undone"),
    Metric::counter("saga_failed_total", &["type"], "failures of steps and undos that were counted"),
    Metric::counter("saga_stuck_total", &["type"], "sagas that became stuck and need an operator"),
    Metric::counter("saga_replies_total", &["result"], "replies: `kept`, `duplicate`, `late`, `nobody`"),
    Metric::histogram("saga_step_seconds", &["type", "kind"], "from the beginning of a step to its commit"),
    Metric::gauge(
        "saga_overdue_seconds",
        &[],
        "longest time that a saga has waited for a worker, if above a minute",
    ),
];

/// Registers the descriptions; call it once, after the recorder is installed.
pub fn describe() {
    message::describe_metrics!(METRICS);
}

pub(crate) fn started(saga_type: &str) {
    counter!("saga_started_total", "type" => saga_type.to_owned()).increment(1);
}

pub(crate) fn ended(saga_type: &str, state: State) {
    counter!("saga_ended_total", "type" => saga_type.to_owned(), "state" => state.as_str()).increment(1);
}

pub(crate) fn failed(saga_type: &str) {
    counter!("saga_failed_total", "type" => saga_type.to_owned()).increment(1);
}

pub(crate) fn stuck(saga_type: &str) {
    counter!("saga_stuck_total", "type" => saga_type.to_owned()).increment(1);
}

pub(crate) fn replied(replied: Replied) {
    let result = match replied {
        Replied::Kept => "kept",
        Replied::Duplicate => "duplicate",
        Replied::Late => "late",
        Replied::Nobody => "nobody",
    };
    counter!("saga_replies_total", "result" => result).increment(1);
}

pub(crate) fn step(saga_type: &str, kind: StepKind, took: Duration) {
    let kind = kind.as_str();
    histogram!("saga_step_seconds", "type" => saga_type.to_owned(), "kind" => kind)
        .record(took.as_secs_f64());
}

pub(crate) fn overdue(longest: Duration) {
    gauge!("saga_overdue_seconds").set(longest.as_secs_f64());
}
