//! The one table of every metric of producers.
//!
//! | name | kind | labels | counts |
//! |---|---|---|---|
//! | `outbox_ids_refused_total` | counter | reason | supplied message ids refused by their time: `too_old`, `too_far_ahead` |
//! | `outbox_node_numbers_taken_total` | counter | – | node numbers taken |
//! | `outbox_node_numbers_lost_total` | counter | – | node numbers that somebody else got, or an operator took away |
//! | `outbox_node_ids_refused_total` | counter | reason | ids that a node did not make: `no_number`, `expired`, `behind` |

use message::token::{Drift, Stale};
use metrics::{counter, describe_counter};

/// Registers the descriptions; call it once, after the recorder is installed.
pub fn describe() {
    for (name, text) in [
        ("outbox_ids_refused_total", "Supplied message ids refused by their time"),
        ("outbox_node_numbers_taken_total", "Node numbers taken"),
        ("outbox_node_numbers_lost_total", "Node numbers lost to another node"),
        ("outbox_node_ids_refused_total", "Ids that a node did not make"),
    ] {
        describe_counter!(name, text);
    }
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
