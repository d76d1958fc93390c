-- Messages that arrive in chunks wait here until all chunks are there. There is one writer, so one transaction at a time
-- looks whether they are.

-- One row per consumer, scope and message of which chunks are kept.
CREATE TABLE inbox_chunk_set (
    message_id   TEXT    NOT NULL,
    consumer     TEXT    NOT NULL,
    scope        TEXT    NOT NULL DEFAULT '',
    -- of the whole message, as each chunk promises it
    fingerprint  BLOB    NOT NULL,
    -- of the whole payload
    bytes        INTEGER NOT NULL,
    topic        TEXT    NOT NULL,
    key          TEXT,
    kind         TEXT    NOT NULL,
    source       TEXT    NOT NULL,
    time         INTEGER NOT NULL,
    content_type TEXT    NOT NULL,
    begun_at     INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    CONSTRAINT inbox_chunk_set_pkey PRIMARY KEY (message_id, consumer, scope, fingerprint),
    CONSTRAINT inbox_chunk_set_consumer_has_1_to_255_bytes CHECK (octet_length(consumer) BETWEEN 1 AND 255),
    CONSTRAINT inbox_chunk_set_scope_has_at_most_255_bytes CHECK (octet_length(scope) <= 255),
    CONSTRAINT inbox_chunk_set_fingerprint_has_32_bytes CHECK (length(fingerprint) = 32),
    CONSTRAINT inbox_chunk_set_bytes_are_positive CHECK (bytes > 0)
) WITHOUT ROWID;

-- Serves the expiry of what stays incomplete, and listing it, oldest first.
CREATE INDEX inbox_chunk_set_begun_at_idx ON inbox_chunk_set (begun_at);

-- The chunks. A message that was split anew (the limit was changed) has chunks of two splits, told apart by how many.
CREATE TABLE inbox_chunk (
    message_id  TEXT    NOT NULL,
    consumer    TEXT    NOT NULL,
    scope       TEXT    NOT NULL,
    fingerprint BLOB    NOT NULL,
    chunks      INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    payload     BLOB    NOT NULL,
    -- Serves keeping each chunk once, counting them and reading them in their order.
    CONSTRAINT inbox_chunk_pkey PRIMARY KEY (message_id, consumer, scope, fingerprint, chunks, number),
    CONSTRAINT inbox_chunk_number_is_one_of_chunks CHECK (number >= 0 AND number < chunks)
);

-- SQLite changes no constraint of a table, so the dead letters move into a new one that knows one more reason.
CREATE TABLE inbox_dead_letter_new (
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
        ('poison', 'rejected', 'key_reused', 'too_old', 'from_the_future', 'malformed', 'incomplete')),
    CONSTRAINT inbox_dead_letter_resolution_is_known CHECK (resolution IN
        ('applied', 'applied_late', 'duplicate', 'discarded')),
    CONSTRAINT inbox_dead_letter_is_resolved_at_a_time CHECK ((resolution IS NULL) = (resolved_at IS NULL))
);

INSERT INTO inbox_dead_letter_new (
    id, consumer, scope, subject, fingerprint, message_id, topic, key, kind, source, time, content_type, headers,
    traceparent, tracestate, payload, reason, error, attempts, deliveries, origin, dead_at, resolution, resolved_at
) SELECT
    id, consumer, scope, subject, fingerprint, message_id, topic, key, kind, source, time, content_type, headers,
    traceparent, tracestate, payload, reason, error, attempts, deliveries, origin, dead_at, resolution, resolved_at
FROM inbox_dead_letter;
DROP TABLE inbox_dead_letter;
ALTER TABLE inbox_dead_letter_new RENAME TO inbox_dead_letter;

-- Serves listing what is open, oldest first.
CREATE INDEX inbox_dead_letter_open_idx ON inbox_dead_letter (consumer, id) WHERE resolution IS NULL;
-- Serves the purge of what was resolved long ago.
CREATE INDEX inbox_dead_letter_resolved_at_idx ON inbox_dead_letter (resolved_at) WHERE resolution IS NOT NULL;
