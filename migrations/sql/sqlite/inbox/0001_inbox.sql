-- The inbox: which messages took effect, which failed, and which an operator has to look at.
--
--   messages       inbox_message, inbox_retention
--   failures       inbox_attempt, inbox_dead_letter
--   chunks         inbox_chunk_set, inbox_chunk
--   operators      inbox_audit, inbox_minute
--
-- Times are whole microseconds since 1970 in UTC. Ids are UUIDs in lower-case text, which sorts as
-- their bytes do.


-- Messages ----------------------------------------------------------------------------------------

-- One row for each consumer, scope and message that took effect, written in the transaction of the
-- effect. A message that ended as a dead letter has a row as well, which stops every further copy
-- of it.
CREATE TABLE inbox_message (
    message_id            TEXT    NOT NULL,
    consumer              TEXT    NOT NULL,
    -- The tenant; empty without one.
    scope                 TEXT    NOT NULL DEFAULT '',
    -- Hash of the content. Another content under a known id is refused.
    fingerprint           BLOB    NOT NULL,
    -- What the handler returned.
    result                BLOB,
    processed_at          INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    -- The dead letter that the message ended as; null when it took effect. A redrive clears it in
    -- the transaction of the effect.
    dead_letter           TEXT,
    -- Beside the fingerprint of the bytes, of consumers that compare JSON by its content
    -- (PayloadComparison::CanonicalJson).
    canonical_fingerprint BLOB,
    -- Source and id together identify a message: the same id from another source is refused.
    source                TEXT,
    -- The guard is one insert that finds the conflict. For expiry the oldest ids lie together.
    CONSTRAINT inbox_message_pkey PRIMARY KEY (message_id, consumer, scope),
    CONSTRAINT inbox_message_message_id_is_version_7
        CHECK (length(message_id) = 36 AND substr(message_id, 15, 1) = '7' AND message_id = lower(message_id)),
    CONSTRAINT inbox_message_consumer_has_1_to_255_bytes CHECK (octet_length(consumer) BETWEEN 1 AND 255),
    CONSTRAINT inbox_message_scope_has_at_most_255_bytes CHECK (octet_length(scope) <= 255),
    CONSTRAINT inbox_message_fingerprint_has_32_bytes CHECK (length(fingerprint) = 32)
) WITHOUT ROWID;

-- Where memory begins: ids generated before this moment are refused. It never moves back.
CREATE TABLE inbox_retention (
    only_row      INTEGER NOT NULL DEFAULT 1,
    retained_from INTEGER NOT NULL,
    -- The smallest id of that moment.
    id_floor      TEXT    NOT NULL,
    CONSTRAINT inbox_retention_pkey PRIMARY KEY (only_row),
    CONSTRAINT inbox_retention_has_one_row CHECK (only_row = 1),
    CONSTRAINT inbox_retention_retained_from_is_a_day CHECK (retained_from % 86400000000 = 0)
);


-- Failures ----------------------------------------------------------------------------------------

-- Messages whose handler failed and which are to be tried again, and messages in hand.
CREATE TABLE inbox_attempt (
    consumer        TEXT    NOT NULL,
    scope           TEXT    NOT NULL,
    message_id      TEXT    NOT NULL,
    -- 0: it failed, and nothing shows that the message itself is the cause.
    attempts        INTEGER NOT NULL,
    last_error      TEXT    NOT NULL,
    first_failed_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    next_at         INTEGER NOT NULL,
    -- A message whose handler ends its process leaves no failure behind. So a consumer notes which
    -- process has a message in hand where an earlier one may have ended with it. The next process
    -- that takes the message counts that in `ends`. A row without an error says nothing else.
    in_hand         TEXT,
    ends            INTEGER NOT NULL DEFAULT 0,
    -- Failures in a row that were not counted, none of them more than an hour after the one before.
    uncounted       INTEGER NOT NULL DEFAULT 0,
    CONSTRAINT inbox_attempt_pkey PRIMARY KEY (consumer, scope, message_id),
    CONSTRAINT inbox_attempt_attempts_are_not_negative CHECK (attempts >= 0),
    CONSTRAINT inbox_attempt_ends_are_not_negative CHECK (ends >= 0),
    CONSTRAINT inbox_attempt_uncounted_are_not_negative CHECK (uncounted >= 0)
) WITHOUT ROWID;

-- Serves the purge of attempts whose message never came again.
CREATE INDEX inbox_attempt_first_failed_at_idx ON inbox_attempt (first_failed_at);

-- Messages that an operator has to look at, as they arrived.
CREATE TABLE inbox_dead_letter (
    -- The order of arrival; the ids come from the clocks of several processes.
    seq          INTEGER NOT NULL,
    id           TEXT    NOT NULL,
    consumer     TEXT    NOT NULL,
    scope        TEXT    NOT NULL,
    -- Names the delivery: the message id, or for an unreadable delivery a hash of its bytes and
    -- origin.
    subject      TEXT    NOT NULL,
    -- Distinguishes two payloads under one id.
    fingerprint  BLOB    NOT NULL,
    -- Null for an unreadable delivery.
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
    -- The place in the broker that the delivery came from.
    origin       TEXT    NOT NULL,
    dead_at      INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    -- How it was closed; null while it is open.
    resolution   TEXT,
    resolved_at  INTEGER,
    CONSTRAINT inbox_dead_letter_pkey PRIMARY KEY (seq),
    CONSTRAINT inbox_dead_letter_id_key UNIQUE (id),
    -- `held`: behind the dead letter of its key (AfterDeadLetter::HoldKey, ADR 31).
    CONSTRAINT inbox_dead_letter_reason_is_known CHECK (reason IN
        ('poison', 'rejected', 'key_reused', 'too_old', 'from_the_future', 'malformed', 'incomplete',
        'no_scope', 'held')),
    CONSTRAINT inbox_dead_letter_resolution_is_known CHECK (resolution IN
        ('applied', 'applied_late', 'duplicate', 'discarded')),
    CONSTRAINT inbox_dead_letter_is_resolved_at_a_time CHECK ((resolution IS NULL) = (resolved_at IS NULL))
);

-- A delivery that dies again, because its settlement was lost, is counted and not stored twice. One
-- that was given up gets another dead letter: nobody would look at the closed one.
CREATE UNIQUE INDEX inbox_dead_letter_delivery_idx ON inbox_dead_letter (consumer, scope, subject, fingerprint)
    WHERE resolution IS NOT 'discarded';
-- Serves the list of what is open, oldest first.
CREATE INDEX inbox_dead_letter_open_idx ON inbox_dead_letter (consumer, id) WHERE resolution IS NULL;
-- Serves the search for what holds a key, and has nothing else: a key may have any number of open
-- dead letters that do not hold it.
CREATE INDEX inbox_dead_letter_key_idx ON inbox_dead_letter (consumer, scope, topic, key, seq)
    WHERE resolution IS NULL AND key IS NOT NULL AND message_id IS NOT NULL
        AND reason IN ('poison', 'rejected', 'too_old', 'from_the_future', 'held');
-- Serves the search for held messages whose turn it is.
CREATE INDEX inbox_dead_letter_held_idx ON inbox_dead_letter (consumer, scope, topic, key, seq)
    WHERE resolution IS NULL AND reason = 'held';
-- Serves questions about single messages, and `relay verify`, which asks about many.
CREATE INDEX inbox_dead_letter_subject_idx ON inbox_dead_letter (subject);
-- Serves the purge of what was resolved long ago.
CREATE INDEX inbox_dead_letter_resolved_at_idx ON inbox_dead_letter (resolved_at) WHERE resolution IS NOT NULL;

-- How a dead letter was closed stays as it is.
CREATE TRIGGER inbox_dead_letter_keep_resolution BEFORE UPDATE OF resolution, resolved_at ON inbox_dead_letter
    WHEN OLD.resolution IS NOT NULL AND (NEW.resolution IS NOT OLD.resolution OR NEW.resolved_at IS NOT OLD.resolved_at)
BEGIN
    SELECT RAISE(ABORT, 'a closed dead letter stays as it is');
END;

-- Only a closed dead letter can be removed. A late application is never removed: its dead letter is
-- the only record of the effect.
CREATE TRIGGER inbox_dead_letter_keep_record BEFORE DELETE ON inbox_dead_letter
    WHEN OLD.resolution IS NULL OR OLD.resolution = 'applied_late'
BEGIN
    SELECT RAISE(ABORT, 'a dead letter that is open, or the record of a late application, is not removed');
END;


-- Chunks ------------------------------------------------------------------------------------------

-- Messages that arrive in chunks wait here until all chunks have arrived (ADR 13). There is one
-- writer, so one transaction at a time counts the chunks.
--
-- One row for each consumer, scope and message with stored chunks.
CREATE TABLE inbox_chunk_set (
    message_id   TEXT    NOT NULL,
    consumer     TEXT    NOT NULL,
    scope        TEXT    NOT NULL DEFAULT '',
    -- Of the whole message, as each chunk promises it.
    fingerprint  BLOB    NOT NULL,
    -- Of the whole payload.
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

-- Serves the expiry of what stays incomplete, and its list, oldest first.
CREATE INDEX inbox_chunk_set_begun_at_idx ON inbox_chunk_set (begun_at);

-- The chunks. A message that was split again, because the limit was changed, has chunks of two
-- splits, which differ in `chunks`.
CREATE TABLE inbox_chunk (
    message_id  TEXT    NOT NULL,
    consumer    TEXT    NOT NULL,
    scope       TEXT    NOT NULL,
    fingerprint BLOB    NOT NULL,
    chunks      INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    payload     BLOB    NOT NULL,
    -- Stores each chunk once; counts them, and reads them in their order.
    CONSTRAINT inbox_chunk_pkey PRIMARY KEY (message_id, consumer, scope, fingerprint, chunks, number),
    CONSTRAINT inbox_chunk_number_is_one_of_chunks CHECK (number >= 0 AND number < chunks)
);


-- Operators ---------------------------------------------------------------------------------------

-- Who decided what about a dead letter, and why. Its consumer, which has the handler, carries out a
-- redrive: until then the row is the request.
CREATE TABLE inbox_audit (
    seq         INTEGER NOT NULL,
    at          INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    actor       TEXT    NOT NULL,
    note        TEXT    NOT NULL,
    -- The filter by which the dead letter was chosen, and how many it chose; null when there was no
    -- filter.
    selection   TEXT,
    action      TEXT    NOT NULL,
    dead_letter TEXT    NOT NULL,
    consumer    TEXT    NOT NULL,
    accept_late INTEGER NOT NULL DEFAULT 0,
    -- The result: how the dead letter was closed, or the error.
    outcome     TEXT,
    done_at     INTEGER,
    -- The same in the rows of all dead letters of one confirmation; null when each was decided about
    -- by itself.
    decision    TEXT,
    CONSTRAINT inbox_audit_pkey PRIMARY KEY (seq),
    CONSTRAINT inbox_audit_action_is_known CHECK (action IN ('redrive', 'discard')),
    CONSTRAINT inbox_audit_has_an_outcome_at_a_time CHECK ((outcome IS NULL) = (done_at IS NULL))
);

-- Serves the result of a decision; a confirmation that is sent twice finds the first one.
CREATE INDEX inbox_audit_decision_idx ON inbox_audit (decision, dead_letter) WHERE decision IS NOT NULL;

-- Serves the decisions about a dead letter.
CREATE INDEX inbox_audit_letter_idx ON inbox_audit (dead_letter, seq);

-- Serves the removal of old decisions.
CREATE INDEX inbox_audit_done_idx ON inbox_audit (at) WHERE done_at IS NOT NULL;

-- Serves the consumers' search for requests, in their order.
CREATE INDEX inbox_audit_open_idx ON inbox_audit (consumer, seq) WHERE done_at IS NULL;

-- One request for a dead letter at a time.
CREATE UNIQUE INDEX inbox_audit_requested_idx ON inbox_audit (consumer, dead_letter) WHERE done_at IS NULL;

-- A duplicate leaves no row of its own. Consumers store how many there were in each minute of the
-- last day, and how many messages took effect, so that their rate can be read from the tables.
CREATE TABLE inbox_minute (
    consumer   TEXT    NOT NULL,
    minute     INTEGER NOT NULL,
    applied    INTEGER NOT NULL,
    duplicates INTEGER NOT NULL,
    CONSTRAINT inbox_minute_pkey PRIMARY KEY (consumer, minute),
    CONSTRAINT inbox_minute_counts_are_not_negative CHECK (applied >= 0 AND duplicates >= 0)
) WITHOUT ROWID;
