-- The outbox: an append-only log that producers write in their own transactions, and the tables
-- that relays and operators keep beside it.
--
--   log         outbox_message
--   nodes       outbox_node: numbers for producers that make ids themselves
--   relays      outbox_relay, outbox_exception, outbox_parked
--   operators   outbox_pause, outbox_audit, outbox_operation
--   retention   outbox_retention
--
-- Times are whole microseconds since 1970 in UTC: they compare and subtract as numbers, with the
-- resolution of PostgreSQL. To read one: datetime(enqueued_at / 1000000, 'unixepoch').


-- Log ---------------------------------------------------------------------------------------------

-- A producer in any language writes a row in its own transaction:
--   INSERT INTO outbox_message (topic, key, payload) VALUES ('orders', 'order-7', CAST('...' AS BLOB));
CREATE TABLE outbox_message (
    -- There is one writer at a time, so ids ascend in the order of commits. AUTOINCREMENT: the id
    -- of a deleted row is never used again.
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    -- A version 7 UUID (RFC 9562) in lower-case text; the default makes one of the present moment.
    message_id   TEXT    NOT NULL DEFAULT (lower(printf('%08x-%04x-7%s-%s%s-%s',
                     CAST(unixepoch('subsec') * 1000 AS INTEGER) >> 16,
                     CAST(unixepoch('subsec') * 1000 AS INTEGER) & 65535,
                     substr(hex(randomblob(2)), 2),
                     substr('89ab', 1 + (random() & 3), 1),
                     substr(hex(randomblob(2)), 2),
                     hex(randomblob(6))))),
    topic        TEXT    NOT NULL,
    -- Messages of one key leave in the order of their ids.
    key          TEXT,
    -- The CloudEvents type; where it is null, the topic is the type.
    kind         TEXT,
    content_type TEXT    NOT NULL DEFAULT 'application/json',
    headers      TEXT,
    -- W3C Trace Context of the producer.
    traceparent  TEXT,
    tracestate   TEXT,
    payload      BLOB    NOT NULL,
    -- The message leaves at this time or later; null: at once.
    deliver_at   INTEGER,
    enqueued_at  INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    -- Detects a second enqueue of one id; finds out whether an unknown commit happened.
    CONSTRAINT outbox_message_message_id_key UNIQUE (message_id),
    CONSTRAINT outbox_message_message_id_is_version_7
        CHECK (length(message_id) = 36 AND substr(message_id, 15, 1) = '7' AND message_id = lower(message_id)),
    -- What every broker accepts.
    CONSTRAINT outbox_message_topic_has_1_to_255_bytes CHECK (octet_length(topic) BETWEEN 1 AND 255),
    CONSTRAINT outbox_message_key_has_1_to_255_bytes CHECK (octet_length(key) BETWEEN 1 AND 255),
    CONSTRAINT outbox_message_kind_has_1_to_255_bytes CHECK (octet_length(kind) BETWEEN 1 AND 255),
    CONSTRAINT outbox_message_content_type_has_1_to_255_bytes
        CHECK (octet_length(content_type) BETWEEN 1 AND 255),
    CONSTRAINT outbox_message_headers_are_an_object CHECK (json_type(headers) = 'object'),
    -- Up to the year 9999, what a client library can represent.
    CONSTRAINT outbox_message_deliver_at_is_finite CHECK (deliver_at BETWEEN 0 AND 253402214400000000),
    CONSTRAINT outbox_message_enqueued_at_is_finite CHECK (enqueued_at BETWEEN 0 AND 253402214400000000)
) STRICT;

-- Relays read behind the largest id that they have seen, so a row with a smaller one would never
-- leave. One with the largest possible id would leave no id for later rows. SQLite writes its
-- sequence at the end of the statement, so ids that it gives out are larger here.
CREATE TRIGGER outbox_message_id_ascends AFTER INSERT ON outbox_message
WHEN NEW.id - coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox_message'), 0)
    NOT BETWEEN 1 AND 1099511627776
BEGIN
    SELECT RAISE(ABORT, 'outbox_message.id is given out by the database: leave the column out');
END;


-- Nodes -------------------------------------------------------------------------------------------

-- Numbers for nodes that make ids themselves: processes that share this file. A row is never
-- removed, because its epoch must not begin again.
CREATE TABLE outbox_node (
    number      INTEGER NOT NULL,
    -- The fencing token, a part of every id: a later holder of the number has a larger one.
    epoch       INTEGER NOT NULL,
    -- Null while the number is free.
    holder      TEXT,
    lease_until INTEGER,
    taken_at    INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    CONSTRAINT outbox_node_pkey PRIMARY KEY (number),
    -- What an id has room for.
    CONSTRAINT outbox_node_number_has_16_bits CHECK (number BETWEEN 0 AND 65535),
    CONSTRAINT outbox_node_epoch_has_32_bits CHECK (epoch BETWEEN 1 AND 4294967295),
    CONSTRAINT outbox_node_holder_has_1_to_255_bytes CHECK (octet_length(holder) BETWEEN 1 AND 255),
    CONSTRAINT outbox_node_holder_has_a_lease CHECK ((holder IS NULL) = (lease_until IS NULL))
) STRICT;


-- Relays ------------------------------------------------------------------------------------------

-- The lease and the cursor of each relay.
CREATE TABLE outbox_relay (
    relay         TEXT    NOT NULL,
    -- The log that the relay reads. There is one, 0. It is in every key of this section so that a
    -- relay can read many logs later without new keys.
    shard         INTEGER NOT NULL DEFAULT 0,
    -- The fencing token: a later holder has a larger one.
    epoch         INTEGER NOT NULL,
    -- Null while the lease is free.
    holder        TEXT,
    -- The holder whose expired lease the present holder took over.
    taken_from    TEXT,
    lease_until   INTEGER,
    -- JSON, written and read by the relay: up to where everything is confirmed or in
    -- outbox_exception.
    cursor        TEXT    NOT NULL,
    checkpoint_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    -- The length that the holder asked for: a lease that ends later than this from now was written
    -- by a clock that was ahead.
    lease_seconds REAL,
    CONSTRAINT outbox_relay_pkey PRIMARY KEY (relay, shard),
    CONSTRAINT outbox_relay_holder_has_a_lease CHECK ((holder IS NULL) = (lease_until IS NULL))
) STRICT;

-- The only entries with a row beside the log: those that did not simply leave.
CREATE TABLE outbox_exception (
    relay      TEXT    NOT NULL,
    shard      INTEGER NOT NULL DEFAULT 0,
    id         INTEGER NOT NULL,
    message_id TEXT    NOT NULL,
    topic      TEXT    NOT NULL,
    key        TEXT,
    state      TEXT    NOT NULL,
    attempts   INTEGER NOT NULL DEFAULT 0,
    -- When the entry is due: to be published, to be tried again, or, once discarded, to be removed.
    due_at     INTEGER,
    -- The party at fault in the last failure, and its text.
    fault      TEXT,
    error      TEXT,
    created_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    updated_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    -- What error said before, up to nine texts of 500 characters, oldest first: attempts, at, error.
    -- Null until the error changes.
    earlier_errors TEXT,
    CONSTRAINT outbox_exception_pkey PRIMARY KEY (relay, shard, id),
    CONSTRAINT outbox_exception_state_is_known
        CHECK (state IN ('scheduled', 'retrying', 'held', 'dead', 'discarded')),
    CONSTRAINT outbox_exception_due_state_has_a_time
        CHECK (state NOT IN ('scheduled', 'retrying', 'discarded') OR due_at IS NOT NULL),
    CONSTRAINT outbox_exception_fault_is_known CHECK (fault IN ('broker', 'message', 'operator')),
    CONSTRAINT outbox_exception_attempts_are_not_negative CHECK (attempts >= 0)
) STRICT;

-- What is scheduled for now, what was discarded, and when the next one is due. Two indexes, so that
-- this is found at once beside any number of retries.
CREATE INDEX outbox_exception_due_idx ON outbox_exception (relay, shard, due_at, id)
    WHERE state IN ('scheduled', 'discarded');
-- What is retried now, and when the next one is due.
CREATE INDEX outbox_exception_retry_idx ON outbox_exception (relay, shard, due_at, id) WHERE state = 'retrying';
-- The held entries of a key, or of a topic without a key, in the order of ids; which queues there
-- are.
CREATE INDEX outbox_exception_queue_idx ON outbox_exception (relay, shard, coalesce('k' || key, 't' || topic), id)
    WHERE state = 'held';
-- What keys wait for, when a relay takes over; lists dead entries for operators.
CREATE INDEX outbox_exception_stuck_idx ON outbox_exception (relay, shard, id) WHERE state IN ('retrying', 'dead');

-- The content of each row of outbox_exception, copied when it was parked, so that history does not
-- wait for it.
CREATE TABLE outbox_parked (
    relay        TEXT    NOT NULL,
    shard        INTEGER NOT NULL DEFAULT 0,
    id           INTEGER NOT NULL,
    kind         TEXT,
    content_type TEXT    NOT NULL,
    headers      TEXT,
    traceparent  TEXT,
    tracestate   TEXT,
    payload      BLOB    NOT NULL,
    enqueued_at  INTEGER NOT NULL,
    -- When an operator replaced the content.
    edited_at    INTEGER,
    CONSTRAINT outbox_parked_pkey PRIMARY KEY (relay, shard, id),
    CONSTRAINT outbox_parked_headers_are_an_object CHECK (json_type(headers) = 'object')
) STRICT;


-- Operators ---------------------------------------------------------------------------------------

-- Operators pause a pipeline, one of its topics, or an ordering key. A running relay looks here
-- twice a second.
CREATE TABLE outbox_pause (
    relay     TEXT    NOT NULL,
    kind      TEXT    NOT NULL,
    -- The topic or key; empty for the whole pipeline.
    name      TEXT    NOT NULL,
    actor     TEXT    NOT NULL,
    reason    TEXT    NOT NULL,
    paused_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    CONSTRAINT outbox_pause_pkey PRIMARY KEY (relay, kind, name),
    CONSTRAINT outbox_pause_kind_is_known CHECK (kind IN ('pipeline', 'topic', 'key')),
    CONSTRAINT outbox_pause_names_a_topic_or_key CHECK ((kind = 'pipeline') = (name = '')),
    CONSTRAINT outbox_pause_has_a_reason CHECK (reason <> '')
) STRICT;

-- Who decided what about a dead entry.
CREATE TABLE outbox_audit (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    at            INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    actor         TEXT    NOT NULL,
    note          TEXT    NOT NULL,
    -- The filter by which the entry was chosen, and how many it chose; null when there was no
    -- filter.
    selection     TEXT,
    action        TEXT    NOT NULL,
    relay         TEXT    NOT NULL,
    id            INTEGER NOT NULL,
    message_id    TEXT    NOT NULL,
    -- SHA-256 of payload and headers.
    digest_before TEXT,
    digest_after  TEXT,
    -- What an edit replaced, and by what. Null for other decisions, and when larger than 64 KiB.
    payload_before BLOB,
    headers_before TEXT,
    payload_after  BLOB,
    headers_after  TEXT,
    -- The party at fault, and why the entry was dead when the decision was made. A discarded entry
    -- leaves no other trace of it.
    fault         TEXT,
    error         TEXT,
    -- The same in the rows of all messages of one confirmation; null when each was decided about by
    -- itself.
    decision      TEXT,
    CONSTRAINT outbox_audit_action_is_known CHECK (action IN ('requeue', 'discard', 'edit'))
) STRICT;

-- The decisions about a message: for each row that a replay, a tail, a verification or a list looks
-- at.
CREATE INDEX outbox_audit_message_idx ON outbox_audit (relay, message_id, seq);
-- The messages of one decision, for its result. A confirmation that is sent twice finds the first one.
CREATE INDEX outbox_audit_decision_idx ON outbox_audit (relay, decision, seq) WHERE decision IS NOT NULL;
-- Lists the decisions of one relay, however many the others have.
CREATE INDEX outbox_audit_relay_idx ON outbox_audit (relay, seq);

-- Who paused or resumed what, and why; decisions about dead entries are in outbox_audit.
CREATE TABLE outbox_operation (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    at        INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    actor     TEXT    NOT NULL,
    note      TEXT    NOT NULL,
    -- What was paused or resumed.
    selection TEXT    NOT NULL,
    action    TEXT    NOT NULL,
    relay     TEXT    NOT NULL
) STRICT;
-- Lists the operations on one relay, however many there are on others.
CREATE INDEX outbox_operation_relay_idx ON outbox_operation (relay, seq);
-- Which sessions of the page were ended, however many other operations there are.
CREATE INDEX outbox_operation_action_idx ON outbox_operation (relay, action, seq);


-- Retention ---------------------------------------------------------------------------------------

-- Rows that every relay has passed are removed in small runs, oldest first.
CREATE TABLE outbox_retention (
    singleton       INTEGER NOT NULL DEFAULT 1,
    -- The largest message id that was removed: of smaller ones the log knows nothing.
    expired_through TEXT,
    expired_at      INTEGER,
    -- Retention has looked at the decisions up to this one in its present round; 0 at the beginning
    -- of a round.
    decisions_after INTEGER NOT NULL DEFAULT 0,
    CONSTRAINT outbox_retention_pkey PRIMARY KEY (singleton),
    CONSTRAINT outbox_retention_has_one_row CHECK (singleton = 1)
) STRICT;
INSERT INTO outbox_retention DEFAULT VALUES;
