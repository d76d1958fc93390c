//! The one table of every metric of sagas.
//!
//! | name | kind | labels | counts |
//! |---|---|---|---|
//! | `saga_started_total` | counter | type | sagas started; of those whose transaction rolled back, too |
//! | `saga_ended_total` | counter | type, state | sagas that finished, or were undone |
//! | `saga_failed_total` | counter | type | failures of steps and undos that were counted |
//! | `saga_stuck_total` | counter | type | sagas that came to need an operator |
//! | `saga_replies_total` | counter | result | replies: kept, duplicate, late, nobody |
//! | `saga_step_seconds` | histogram | type, kind | from the beginning of a step to its commit |
//! | `saga_overdue_seconds` | gauge | – | how long the saga waits that waits longest for a worker, from a minute on |

use std::time::Duration;

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use crate::dialect::Replied;
use crate::record::{State, StepKind};

/// Registers the descriptions; call it once, after the recorder is installed.
pub fn describe() {
    for (name, text) in [
        ("saga_started_total", "Sagas started"),
        ("saga_ended_total", "Sagas that finished or were undone"),
        ("saga_failed_total", "Failures of steps and undos that were counted"),
        ("saga_stuck_total", "Sagas that came to need an operator"),
        ("saga_replies_total", "Replies to requests of sagas"),
    ] {
        describe_counter!(name, text);
    }
    let seconds = metrics::Unit::Seconds;
    describe_histogram!("saga_step_seconds", seconds, "From the beginning of a step to its commit");
    describe_gauge!("saga_overdue_seconds", seconds, "How long a saga waits for a worker");
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
