//! The one table of the relay's metrics.

use message::Metric;

/// Counted by the program, which owns its log.
pub const LOG_LINES_DROPPED: &str = "relay_log_lines_dropped_total";

/// Every metric of this crate. `docs/operations/metrics.md` has the same rows.
pub const METRICS: &[Metric] = &[
    Metric::counter("relay_read_total", &["relay"], "entries read from the log, committed by producers"),
    Metric::counter(
        "relay_submitted_total",
        &["relay"],
        "attempts: messages handed to the broker's client, including repeated ones",
    ),
    Metric::counter("relay_published_total", &["relay", "topic"], "messages that the broker confirmed"),
    Metric::counter(
        "relay_unrouted_total",
        &["relay", "topic"],
        "messages among them that no queue took (RabbitMQ, `unroutable = \"pass\"`)",
    ),
    Metric::counter(
        "relay_publish_failures_total",
        &["relay", "topic", "fault", "scope"],
        "receipts that report a failure; `fault` is `broker`, `message` or `operator`; `scope` is what the \
         failure affects: `message`, `topic` or `session`",
    ),
    Metric::counter(
        "relay_busy_total",
        &["relay", "topic"],
        "messages that were given to their destination and had to wait, because it takes them more slowly than they \
         come, or another message tries whether it is back",
    ),
    Metric::histogram(
        "relay_publish_seconds",
        &["relay", "topic"],
        "time from handing a message to the broker's client until the broker's confirmation",
    ),
    Metric::histogram(
        "relay_delivery_seconds",
        &["relay", "topic"],
        "time from the enqueue of a message until the broker's confirmation, by the clocks of database and \
         relay; includes the wait of a scheduled message",
    ),
    Metric::counter(
        "relay_parked_total",
        &["relay", "state", "cause"],
        "entries parked; `state` is `scheduled`, `retrying`, `held` or `dead`; `cause` is the party at \
         fault: `broker`, `message`, `operator`, or `none` if the entry only waits",
    ),
    Metric::counter(
        "relay_left_out_total",
        &["relay"],
        "entries read but not published, because the pipeline's filter excludes them",
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
        "database failures that ended a term or prevented one",
    ),
    Metric::counter(
        "relay_pipeline_faults_total",
        &["relay"],
        "internal errors that ended the pipeline, which was then restarted",
    ),
    Metric::gauge(
        "relay_in_flight_messages",
        &["relay"],
        "messages handed to the broker's client and not yet answered",
    ),
    Metric::gauge("relay_window_entries", &["relay"], "entries read and not yet settled"),
    Metric::gauge("relay_window_bytes", &["relay"], "bytes of entries read and not yet settled"),
    Metric::gauge("relay_blocked_keys", &["relay"], "keys that are blocked, or have a burst beside the log"),
    Metric::gauge("relay_blocked_topics", &["relay"], "topics that are blocked"),
    Metric::gauge(
        "relay_busy_topics",
        &["relay"],
        "topics whose destination has had more messages than it takes soon within the last minute",
    ),
    Metric::gauge(
        "relay_unanswered_messages",
        &["relay"],
        "messages that the relay no longer waits for, although the broker may still answer",
    ),
    Metric::gauge(
        "relay_database_up",
        &["relay"],
        "1 if the last query of the database succeeded, otherwise 0; while it is 0, the gauges below keep \
         their values",
    ),
    Metric::gauge(
        "relay_backlog_messages",
        &["relay"],
        "upper bound of the messages to publish: in the log, held, retrying, or scheduled and due; gaps in \
         the ids are counted as messages",
    ),
    Metric::gauge(
        "relay_oldest_pending_seconds",
        &["relay"],
        "age of the longest waiting message, including held, retrying and due ones; 0 if no message is \
         waiting",
    ),
    Metric::gauge(
        "relay_parked_messages",
        &["relay", "state", "cause"],
        "messages parked now, by state and cause; the count stops at 1,000,000 for each relay",
    ),
    Metric::gauge(
        "relay_lease_held",
        &["relay"],
        "1 while any process holds an unexpired lease, otherwise 0",
    ),
    Metric::gauge(
        "relay_checkpoint_age_seconds",
        &["relay"],
        "time since the cursor was last stored; grows while there is nothing to publish",
    ),
    Metric::gauge(
        "relay_held_back_seconds",
        &["relay"],
        "age of the oldest open or prepared transaction that has written to the outbox, and whose rows \
         therefore wait; 0 if there is none. If the server hides the age (no `pg_read_all_stats`), the time \
         since the relay first saw the transaction",
    ),
    Metric::gauge(
        "relay_held_back_pid",
        &["relay"],
        "pid of the server process of that transaction; 0 if there is none, and for a prepared transaction",
    ),
    Metric::gauge(
        "relay_cursor_info",
        &["relay", "system_identifier", "timeline"],
        "1 for the history to which the cursor belongs, 0 for earlier ones; PostgreSQL only",
    ),
    Metric::gauge(
        "relay_cursor_is_of_this_server",
        &["relay"],
        "1 if the cursor belongs to the history of the current server, otherwise 0; PostgreSQL only",
    ),
    Metric::counter(
        "relay_expired_segments_total",
        &["relay"],
        "segments of the outbox that retention has emptied",
    ),
    Metric::counter(
        "relay_maintenance_faults_total",
        &["relay"],
        "internal errors that ended maintenance, which was then restarted",
    ),
    Metric::counter(
        LOG_LINES_DROPPED,
        &[],
        "lines of the program's log that were dropped because their reader hangs or they cannot be written",
    ),
    Metric::gauge(
        "relay_history_seconds",
        &["relay"],
        "age of the oldest entry in the outbox, published or not",
    ),
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
