-- The inbox: which messages took effect, which failed, and which an operator has to look at.
--
-- Times are whole microseconds since 1970 in UTC; ids are UUIDs in lower-case text, which sorts as their bytes do.

-- One row per consumer, scope and message that took effect, written in the transaction of the effect.
CREATE TABLE inbox_message (
    message_id   TEXT    NOT NULL,
    consumer     TEXT    NOT NULL,
    scope        TEXT    NOT NULL DEFAULT '',
    fingerprint  BLOB    NOT NULL,
    result       BLOB,
    processed_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    -- Serves the guard: one insert that finds the conflict; and expiry: the oldest ids lie together.
    CONSTRAINT inbox_message_pkey PRIMARY KEY (message_id, consumer, scope),
    CONSTRAINT inbox_message_message_id_is_version_7
        CHECK (length(message_id) = 36 AND substr(message_id, 15, 1) = '7' AND message_id = lower(message_id)),
    CONSTRAINT inbox_message_consumer_has_1_to_255_bytes CHECK (octet_length(consumer) BETWEEN 1 AND 255),
    CONSTRAINT inbox_message_scope_has_at_most_255_bytes CHECK (octet_length(scope) <= 255),
    CONSTRAINT inbox_message_fingerprint_has_32_bytes CHECK (length(fingerprint) = 32)
) WITHOUT ROWID;

-- Where memory begins: ids generated before this moment are refused. One row; the moment never moves back.
-- id_floor is the smallest id of that moment.
CREATE TABLE inbox_retention (
    only_row      INTEGER NOT NULL DEFAULT 1,
    retained_from INTEGER NOT NULL,
    id_floor      TEXT    NOT NULL,
    CONSTRAINT inbox_retention_pkey PRIMARY KEY (only_row),
    CONSTRAINT inbox_retention_has_one_row CHECK (only_row = 1),
    CONSTRAINT inbox_retention_retained_from_is_a_day CHECK (retained_from % 86400000000 = 0)
);

-- Messages whose handler failed and which are to be tried again.
CREATE TABLE inbox_attempt (
    consumer        TEXT    NOT NULL,
    scope           TEXT    NOT NULL,
    message_id      TEXT    NOT NULL,
    attempts        INTEGER NOT NULL,
    last_error      TEXT    NOT NULL,
    first_failed_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    next_at         INTEGER NOT NULL,
    CONSTRAINT inbox_attempt_pkey PRIMARY KEY (consumer, scope, message_id),
    CONSTRAINT inbox_attempt_attempts_are_positive CHECK (attempts > 0)
) WITHOUT ROWID;

-- Serves the purge of attempts whose message never came again.
CREATE INDEX inbox_attempt_first_failed_at_idx ON inbox_attempt (first_failed_at);

-- Messages that an operator has to look at, as they arrived.
CREATE TABLE inbox_dead_letter (
    id           TEXT    NOT NULL,
    consumer     TEXT    NOT NULL,
    scope        TEXT    NOT NULL,
    -- what names the delivery: the message id, or for an unreadable delivery a hash of its bytes and origin
    subject      TEXT    NOT NULL,
    -- what tells two payloads under one id apart
    fingerprint  BLOB    NOT NULL,
    message_id   TEXT,
    topic        TEXT    NOT NULL,
    key          TEXT,
    kind         TEXT,
    source       TEXT,
    time         INTEGER,
    content_type TEXT,
    headers      TEXT    NOT NULL,
    traceparent  TEXT,
    tracestate   TEXT,
    payload      BLOB    NOT NULL,
    reason       TEXT    NOT NULL,
    error        TEXT    NOT NULL,
    attempts     INTEGER NOT NULL,
    deliveries   INTEGER NOT NULL DEFAULT 1,
    origin       TEXT    NOT NULL,
    dead_at      INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    resolution   TEXT,
    resolved_at  INTEGER,
    CONSTRAINT inbox_dead_letter_pkey PRIMARY KEY (id),
    -- A delivery that dies again, because its settlement was lost, is counted and not stored twice.
    CONSTRAINT inbox_dead_letter_delivery_key UNIQUE (consumer, scope, subject, fingerprint),
    CONSTRAINT inbox_dead_letter_reason_is_known CHECK (reason IN
        ('poison', 'rejected', 'key_reused', 'too_old', 'from_the_future', 'malformed')),
    CONSTRAINT inbox_dead_letter_resolution_is_known CHECK (resolution IN
        ('applied', 'applied_late', 'duplicate', 'discarded')),
    CONSTRAINT inbox_dead_letter_is_resolved_at_a_time CHECK ((resolution IS NULL) = (resolved_at IS NULL))
);

-- Serves listing what is open, oldest first.
CREATE INDEX inbox_dead_letter_open_idx ON inbox_dead_letter (consumer, id) WHERE resolution IS NULL;
-- Serves the purge of what was resolved long ago.
CREATE INDEX inbox_dead_letter_resolved_at_idx ON inbox_dead_letter (resolved_at) WHERE resolution IS NOT NULL;
