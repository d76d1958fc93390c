-- The inbox: which messages took effect, which failed, and which an operator has to look at.
--
-- Grants: a consumer needs SELECT, INSERT, UPDATE on inbox_message; SELECT, INSERT on inbox_retention; SELECT, INSERT,
-- UPDATE, DELETE on inbox_attempt and inbox_dead_letter; SELECT on outbox_toolkit_migration. Creating a day's partition
-- and dropping an expired one takes the owner of inbox_message (and CREATE on its schema) and UPDATE on
-- inbox_retention: one process that maintains as the owner is enough for any number of consumers that may not.

-- One row per consumer, scope and message that took effect, written in the transaction of the effect.
CREATE TABLE {schema}inbox_message (
    message_id   uuid        NOT NULL,
    consumer     text        NOT NULL,
    scope        text        NOT NULL DEFAULT '',
    fingerprint  bytea       NOT NULL,
    result       bytea,
    processed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Serves the guard: one insert that finds the conflict. The message id first: it ascends with time, so inserts
    -- stay on the newest leaf of the index.
    CONSTRAINT inbox_message_pkey PRIMARY KEY (message_id, consumer, scope),
    CONSTRAINT inbox_message_consumer_has_1_to_255_bytes CHECK (octet_length(consumer) BETWEEN 1 AND 255),
    CONSTRAINT inbox_message_scope_has_at_most_255_bytes CHECK (octet_length(scope) <= 255),
    CONSTRAINT inbox_message_fingerprint_has_32_bytes CHECK (octet_length(fingerprint) = 32)
) PARTITION BY RANGE (message_id);

COMMENT ON TABLE {schema}inbox_message IS
    'one partition per day (UTC) of the message id''s own time; never give it a DEFAULT partition: a dropped day refuses
its ids because there is no partition to hold them';

-- Where memory begins: ids generated before this moment are refused. One row; the moment never moves back.
CREATE TABLE {schema}inbox_retention (
    only_row      boolean     NOT NULL DEFAULT true,
    retained_from timestamptz NOT NULL,
    CONSTRAINT inbox_retention_pkey PRIMARY KEY (only_row),
    CONSTRAINT inbox_retention_has_one_row CHECK (only_row),
    CONSTRAINT inbox_retention_retained_from_is_a_day
        CHECK (retained_from AT TIME ZONE 'UTC' = date_trunc('day', retained_from AT TIME ZONE 'UTC'))
);

-- Messages whose handler failed and which are to be tried again.
CREATE TABLE {schema}inbox_attempt (
    consumer        text        NOT NULL,
    scope           text        NOT NULL,
    message_id      uuid        NOT NULL,
    attempts        integer     NOT NULL,
    last_error      text        NOT NULL,
    first_failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_at         timestamptz NOT NULL,
    CONSTRAINT inbox_attempt_pkey PRIMARY KEY (consumer, scope, message_id),
    CONSTRAINT inbox_attempt_attempts_are_positive CHECK (attempts > 0)
);

-- Serves the purge of attempts whose message never came again.
CREATE INDEX inbox_attempt_first_failed_at_idx ON {schema}inbox_attempt (first_failed_at);

-- Messages that an operator has to look at, as they arrived.
CREATE TABLE {schema}inbox_dead_letter (
    id           uuid        NOT NULL,
    consumer     text        NOT NULL,
    scope        text        NOT NULL,
    -- what names the delivery: the message id, or for an unreadable delivery a hash of its bytes and origin
    subject      uuid        NOT NULL,
    -- what tells two payloads under one id apart
    fingerprint  bytea       NOT NULL,
    message_id   uuid,
    topic        text        NOT NULL,
    key          text,
    kind         text,
    source       text,
    time         timestamptz,
    content_type text,
    headers      jsonb       NOT NULL,
    traceparent  text,
    tracestate   text,
    payload      bytea       NOT NULL,
    reason       text        NOT NULL,
    error        text        NOT NULL,
    attempts     integer     NOT NULL,
    deliveries   integer     NOT NULL DEFAULT 1,
    origin       text        NOT NULL,
    dead_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    resolution   text,
    resolved_at  timestamptz,
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
CREATE INDEX inbox_dead_letter_open_idx ON {schema}inbox_dead_letter (consumer, id) WHERE resolution IS NULL;
-- Serves the purge of what was resolved long ago.
CREATE INDEX inbox_dead_letter_resolved_at_idx ON {schema}inbox_dead_letter (resolved_at) WHERE resolution IS NOT NULL;
