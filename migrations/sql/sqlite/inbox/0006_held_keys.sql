-- A consumer can hold a key behind its dead letter (AfterDeadLetter::HoldKey): later messages of the key become dead letters of
-- the reason `held`, and are redriven in the order of their arrival.

-- SQLite changes no constraint of a table, so the dead letters move into a new one that knows one more reason.
CREATE TABLE inbox_dead_letter_new (
    -- the order of arrival; the ids come from the clocks of several processes
    seq          INTEGER NOT NULL,
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
    CONSTRAINT inbox_dead_letter_pkey PRIMARY KEY (seq),
    CONSTRAINT inbox_dead_letter_id_key UNIQUE (id),
    CONSTRAINT inbox_dead_letter_reason_is_known CHECK (reason IN
        ('poison', 'rejected', 'key_reused', 'too_old', 'from_the_future', 'malformed', 'incomplete', 'no_scope', 'held')),
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
FROM inbox_dead_letter ORDER BY id;
DROP TABLE inbox_dead_letter;
ALTER TABLE inbox_dead_letter_new RENAME TO inbox_dead_letter;

-- A delivery that dies again is counted and not stored twice. One that was given up gets another letter: nobody would look
-- at the closed one.
CREATE UNIQUE INDEX inbox_dead_letter_delivery_idx ON inbox_dead_letter (consumer, scope, subject, fingerprint)
    WHERE resolution IS NOT 'discarded';
-- Serves listing what is open, oldest first.
CREATE INDEX inbox_dead_letter_open_idx ON inbox_dead_letter (consumer, id) WHERE resolution IS NULL;
-- Serves the purge of what was resolved long ago.
CREATE INDEX inbox_dead_letter_resolved_at_idx ON inbox_dead_letter (resolved_at) WHERE resolution IS NOT NULL;
-- Serves the look for what holds a key.
CREATE INDEX inbox_dead_letter_key_idx ON inbox_dead_letter (consumer, scope, topic, key, seq)
    WHERE resolution IS NULL AND key IS NOT NULL AND message_id IS NOT NULL;
-- Serves the look for held messages whose turn it is.
CREATE INDEX inbox_dead_letter_held_idx ON inbox_dead_letter (consumer, scope, topic, key, seq)
    WHERE resolution IS NULL AND reason = 'held';

-- How a dead letter was closed stays as it is, and only what is closed can be removed. A late application is never
-- removed: its dead letter is the only record of the effect.
CREATE TRIGGER inbox_dead_letter_keep_resolution BEFORE UPDATE OF resolution, resolved_at ON inbox_dead_letter
    WHEN OLD.resolution IS NOT NULL AND (NEW.resolution IS NOT OLD.resolution OR NEW.resolved_at IS NOT OLD.resolved_at)
BEGIN
    SELECT RAISE(ABORT, 'a closed dead letter stays as it is');
END;
CREATE TRIGGER inbox_dead_letter_keep_record BEFORE DELETE ON inbox_dead_letter
    WHEN OLD.resolution IS NULL OR OLD.resolution = 'applied_late'
BEGIN
    SELECT RAISE(ABORT, 'a dead letter that is open, or the record of a late application, is not removed');
END;
