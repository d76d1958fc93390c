-- The outbox: an append-only log that producers write in their own transactions, and what relays keep beside it.
--
-- Times are whole microseconds since 1970 in UTC: they compare and subtract as numbers, with the resolution that
-- PostgreSQL has. To read one: datetime(enqueued_at / 1000000, 'unixepoch').

-- A producer in any language writes a row in its own transaction:
--   INSERT INTO outbox_message (topic, key, payload) VALUES ('orders', 'order-7', CAST('...' AS BLOB));
CREATE TABLE outbox_message (
    -- There is one writer at a time, so ids ascend in the order of commits. AUTOINCREMENT: the id of a deleted row
    -- is never used again.
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
    key          TEXT,
    kind         TEXT, -- the CloudEvents type; where it is null, the topic is the type
    content_type TEXT    NOT NULL DEFAULT 'application/json',
    headers      TEXT,
    traceparent  TEXT,
    tracestate   TEXT,
    payload      BLOB    NOT NULL,
    deliver_at   INTEGER,
    enqueued_at  INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    CONSTRAINT outbox_message_message_id_key UNIQUE (message_id),
    CONSTRAINT outbox_message_message_id_is_version_7
        CHECK (length(message_id) = 36 AND substr(message_id, 15, 1) = '7' AND message_id = lower(message_id)),
    CONSTRAINT outbox_message_topic_has_1_to_255_bytes CHECK (octet_length(topic) BETWEEN 1 AND 255),
    CONSTRAINT outbox_message_key_has_1_to_255_bytes CHECK (octet_length(key) BETWEEN 1 AND 255),
    CONSTRAINT outbox_message_kind_has_1_to_255_bytes CHECK (octet_length(kind) BETWEEN 1 AND 255),
    CONSTRAINT outbox_message_content_type_has_1_to_255_bytes CHECK (octet_length(content_type) BETWEEN 1 AND 255),
    CONSTRAINT outbox_message_headers_are_an_object CHECK (json_type(headers) = 'object'),
    -- up to the year 9999
    CONSTRAINT outbox_message_deliver_at_is_finite CHECK (deliver_at BETWEEN 0 AND 253402214400000000),
    CONSTRAINT outbox_message_enqueued_at_is_finite CHECK (enqueued_at BETWEEN 0 AND 253402214400000000)
) STRICT;

CREATE TABLE outbox_relay (
    relay         TEXT    NOT NULL,
    shard         INTEGER NOT NULL DEFAULT 0,
    epoch         INTEGER NOT NULL, -- the fencing token: a later holder has a larger one
    holder        TEXT,
    taken_from    TEXT,             -- whose expired lease the present holder took over
    lease_until   INTEGER,
    cursor        TEXT    NOT NULL,
    checkpoint_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    CONSTRAINT outbox_relay_pkey PRIMARY KEY (relay, shard),
    CONSTRAINT outbox_relay_holder_has_a_lease CHECK ((holder IS NULL) = (lease_until IS NULL))
) STRICT;

CREATE TABLE outbox_exception (
    relay          TEXT    NOT NULL,
    shard          INTEGER NOT NULL DEFAULT 0,
    id             INTEGER NOT NULL,
    message_id     TEXT    NOT NULL,
    topic          TEXT    NOT NULL,
    key            TEXT,
    state          TEXT    NOT NULL,
    attempts       INTEGER NOT NULL DEFAULT 0,
    due_at         INTEGER,
    fault          TEXT,
    error          TEXT,
    edited_payload BLOB,
    edited_headers TEXT,
    created_at     INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    updated_at     INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    CONSTRAINT outbox_exception_pkey PRIMARY KEY (relay, shard, id),
    CONSTRAINT outbox_exception_state_is_known
        CHECK (state IN ('scheduled', 'retrying', 'held', 'dead', 'discarded')),
    CONSTRAINT outbox_exception_due_state_has_a_time
        CHECK (state NOT IN ('scheduled', 'retrying', 'discarded') OR due_at IS NOT NULL),
    CONSTRAINT outbox_exception_fault_is_known CHECK (fault IN ('broker', 'message', 'operator')),
    CONSTRAINT outbox_exception_attempts_are_not_negative CHECK (attempts >= 0)
) STRICT;

-- what is due now, and when the next one is due
CREATE INDEX outbox_exception_due_idx ON outbox_exception (relay, shard, due_at, id)
    WHERE state IN ('scheduled', 'retrying', 'discarded');
-- held entries in the order of ids, when their key or topic is free again
CREATE INDEX outbox_exception_held_idx ON outbox_exception (relay, shard, id) WHERE state = 'held';
-- lists dead entries for operators
CREATE INDEX outbox_exception_dead_idx ON outbox_exception (relay, shard, id) WHERE state = 'dead';

CREATE TABLE outbox_audit (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    at            INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    actor         TEXT    NOT NULL,
    relay         TEXT    NOT NULL,
    id            INTEGER NOT NULL,
    message_id    TEXT    NOT NULL,
    action        TEXT    NOT NULL,
    note          TEXT    NOT NULL,
    digest_before TEXT, -- SHA-256 of payload and headers
    digest_after  TEXT,
    CONSTRAINT outbox_audit_action_is_known CHECK (action IN ('requeue', 'discard', 'edit'))
) STRICT;
