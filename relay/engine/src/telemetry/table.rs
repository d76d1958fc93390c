//! The one table of the relay's metrics.

use message::Metric;

/// Every metric of this crate. `docs/operations/metrics.md` has the same rows.
pub const METRICS: &[Metric] = &[
    Metric::counter("relay_read_total", &["relay"], "entries read from the log, committed by producers"),
    Metric::counter(
        "relay_submitted_total",
        &["relay"],
        "attempts: messages handed to the broker's client, those that are sent again included",
    ),
    Metric::counter("relay_published_total", &["relay", "topic"], "messages that the broker confirmed"),
    Metric::counter(
        "relay_publish_failures_total",
        &["relay", "topic", "fault", "scope"],
        "receipts that were not a confirmation; `fault` is `broker`, `message` or `operator`, `scope` how far \
         it reaches: `message`, `topic`, `session`",
    ),
    Metric::histogram(
        "relay_publish_seconds",
        &["relay", "topic"],
        "from handing a message to the broker's client to the broker's confirmation",
    ),
    Metric::histogram(
        "relay_delivery_seconds",
        &["relay", "topic"],
        "from enqueueing a message to the broker's confirmation, by the clocks of database and relay; a \
         scheduled message's wait counts",
    ),
    Metric::counter(
        "relay_parked_total",
        &["relay", "state", "cause"],
        "entries parked; `state` is `scheduled`, `retrying`, `held` or `dead`, `cause` whose fault it was: \
         `broker`, `message`, `operator`, or `none` for those that only wait",
    ),
    Metric::counter(
        "relay_left_out_total",
        &["relay"],
        "entries read and passed, because the pipeline's filter leaves them to other relays",
    ),
    Metric::counter("relay_checkpoints_total", &["relay"], "cursors stored"),
    Metric::gauge("relay_leading", &["relay"], "1 while this process leads, otherwise 0"),
    Metric::counter(
        "relay_lease_changes_total",
        &["relay", "change"],
        "leases of this process; `change` is `taken`, `taken_over` or `lost`",
    ),
    Metric::counter(
        "relay_sessions_total",
        &["relay", "outcome"],
        "sessions with the broker; `outcome` is `opened` or `refused`",
    ),
    Metric::counter(
        "relay_database_failures_total",
        &["relay", "fault"],
        "failures of the database that ended a term or kept one from beginning",
    ),
    Metric::counter(
        "relay_pipeline_faults_total",
        &["relay"],
        "faults of this program that ended the pipeline, which began anew",
    ),
    Metric::gauge("relay_in_flight_messages", &["relay"], "handed to the broker's client and not answered"),
    Metric::gauge("relay_window_entries", &["relay"], "entries read and not settled"),
    Metric::gauge("relay_window_bytes", &["relay"], "bytes of the entries read and not settled"),
    Metric::gauge("relay_blocked_keys", &["relay"], "keys that wait"),
    Metric::gauge("relay_blocked_topics", &["relay"], "topics that wait"),
    Metric::gauge(
        "relay_unanswered_messages",
        &["relay"],
        "messages that the relay no longer waits for, but the broker may still answer",
    ),
    Metric::gauge(
        "relay_database_up",
        &["relay"],
        "1 when the last query of the database succeeded, otherwise 0; the gauges below keep their values then",
    ),
    Metric::gauge(
        "relay_backlog_messages",
        &["relay"],
        "upper bound of the messages that wait to leave: in the log, held, retrying, and scheduled ones that are \
         due; gaps in the ids count",
    ),
    Metric::gauge(
        "relay_oldest_pending_seconds",
        &["relay"],
        "age of the message that waits the longest, held, retrying and due ones included; 0 when none waits",
    ),
    Metric::gauge(
        "relay_parked_messages",
        &["relay", "state", "cause"],
        "messages parked now, by state and cause; up to 1,000,000 of a relay are counted",
    ),
    Metric::gauge(
        "relay_lease_held",
        &["relay"],
        "1 while any process holds an unexpired lease, otherwise 0",
    ),
    Metric::gauge(
        "relay_checkpoint_age_seconds",
        &["relay"],
        "time since the cursor was stored; grows while nothing is to be published",
    ),
    Metric::gauge(
        "relay_held_back_seconds",
        &["relay"],
        "age of the oldest open or prepared transaction that has written to the outbox: its own rows wait for it; 0 \
         without one. Where the server hides the age (no `pg_read_all_stats`), the time since the relay first looked at that \
         transaction",
    ),
    Metric::gauge(
        "relay_held_back_pid",
        &["relay"],
        "server process of that transaction; 0 without one, and for a prepared transaction",
    ),
    Metric::gauge(
        "relay_cursor_info",
        &["relay", "system_identifier", "timeline"],
        "1 for the history to which the cursor belongs, 0 for those before it; PostgreSQL only",
    ),
    Metric::gauge(
        "relay_cursor_is_of_this_server",
        &["relay"],
        "1 when that is the server that answers, otherwise 0; PostgreSQL only",
    ),
    Metric::counter("relay_expired_segments_total", &["relay"], "segments of history that were emptied"),
    Metric::counter(
        "relay_maintenance_faults_total",
        &["relay"],
        "faults of this program that ended maintenance, which began anew",
    ),
    Metric::gauge("relay_history_seconds", &["relay"], "age of the oldest entry in the outbox, left or not"),
    Metric::gauge(
        "relay_history_bytes",
        &["relay"],
        "size of the outbox on disk, if the database reports it",
    ),
];

/// Registers the descriptions; call it once, after the recorder is installed.
pub fn describe() {
    message::describe_metrics!(METRICS);
}
