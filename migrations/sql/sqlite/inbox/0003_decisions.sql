-- The row of a dead message stops it where the guard looks; decisions about dead letters are kept; a failure that nobody
-- counts has an age.

-- Which dead letter a message ended as, instead of taking effect. Its row stops every further copy of it, as the row of a
-- message that took effect does; a redrive clears it in the transaction of the effect.
ALTER TABLE inbox_message ADD COLUMN dead_letter TEXT;

-- The dead letters that are there already, as far as memory reaches: what is open and was handled, and what was given up.
INSERT INTO inbox_message (message_id, consumer, scope, fingerprint, processed_at, dead_letter)
SELECT message_id, consumer, scope, fingerprint, dead_at, id FROM inbox_dead_letter
WHERE ((reason IN ('poison', 'rejected') AND resolution IS NULL)
        OR (resolution = 'discarded' AND reason NOT IN ('malformed', 'incomplete')))
    AND message_id IS NOT NULL AND headers NOT LIKE '%"ce_chunk%'
    AND message_id >= (SELECT id_floor FROM inbox_retention)
ORDER BY resolution
ON CONFLICT (message_id, consumer, scope) DO NOTHING;

-- SQLite changes no constraint of a table, so these move into new ones: attempts that count nothing
-- (it failed, and nothing shows that it is the message's own failure), and dead letters with one more reason.
CREATE TABLE inbox_attempt_new (
    consumer        TEXT    NOT NULL,
    scope           TEXT    NOT NULL,
    message_id      TEXT    NOT NULL,
    attempts        INTEGER NOT NULL,
    last_error      TEXT    NOT NULL,
    first_failed_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    next_at         INTEGER NOT NULL,
    CONSTRAINT inbox_attempt_pkey PRIMARY KEY (consumer, scope, message_id),
    CONSTRAINT inbox_attempt_attempts_are_not_negative CHECK (attempts >= 0)
) WITHOUT ROWID;

INSERT INTO inbox_attempt_new (consumer, scope, message_id, attempts, last_error, first_failed_at, next_at)
SELECT consumer, scope, message_id, attempts, last_error, first_failed_at, next_at FROM inbox_attempt;
DROP TABLE inbox_attempt;
ALTER TABLE inbox_attempt_new RENAME TO inbox_attempt;

-- Serves the purge of attempts whose message never came again.
CREATE INDEX inbox_attempt_first_failed_at_idx ON inbox_attempt (first_failed_at);

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
    CONSTRAINT inbox_dead_letter_reason_is_known CHECK (reason IN
        ('poison', 'rejected', 'key_reused', 'too_old', 'from_the_future', 'malformed', 'incomplete', 'no_scope')),
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

-- A delivery that dies again is counted and not stored twice. One that was given up gets another letter: nobody would look
-- at the closed one.
CREATE UNIQUE INDEX inbox_dead_letter_delivery_idx ON inbox_dead_letter (consumer, scope, subject, fingerprint)
    WHERE resolution IS NOT 'discarded';
-- Serves listing what is open, oldest first.
CREATE INDEX inbox_dead_letter_open_idx ON inbox_dead_letter (consumer, id) WHERE resolution IS NULL;
-- Serves the purge of what was resolved long ago.
CREATE INDEX inbox_dead_letter_resolved_at_idx ON inbox_dead_letter (resolved_at) WHERE resolution IS NOT NULL;

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

-- Who decided what about a dead letter, and why. A redrive is carried out by its consumer, which has the handler: until then
-- the row is its request.
CREATE TABLE inbox_audit (
    seq         INTEGER NOT NULL,
    at          INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    actor       TEXT    NOT NULL,
    note        TEXT    NOT NULL,
    dead_letter TEXT    NOT NULL,
    consumer    TEXT    NOT NULL,
    action      TEXT    NOT NULL,
    accept_late INTEGER NOT NULL DEFAULT 0,
    -- what came of it: how the dead letter was closed, or the error
    outcome     TEXT,
    done_at     INTEGER,
    CONSTRAINT inbox_audit_pkey PRIMARY KEY (seq),
    CONSTRAINT inbox_audit_action_is_known CHECK (action IN ('redrive', 'discard')),
    CONSTRAINT inbox_audit_has_an_outcome_at_a_time CHECK ((outcome IS NULL) = (done_at IS NULL))
);

-- Serves the consumers' look for what is to be redriven; one request of a dead letter at a time.
CREATE UNIQUE INDEX inbox_audit_requested_idx ON inbox_audit (consumer, dead_letter) WHERE done_at IS NULL;
