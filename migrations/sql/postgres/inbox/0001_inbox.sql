-- The inbox: which messages took effect, which failed, and which an operator has to look at.
--
--   messages       inbox_message, one partition for each day; inbox_day, inbox_retention
--   failures       inbox_attempt, inbox_dead_letter
--   chunks         inbox_chunk_set, inbox_chunk
--   operators      inbox_audit, inbox_minute
--
-- `relay migrate roles` grants each role what it needs. What a role may do only under conditions is
-- a function that runs with the owner's rights and checks them.
--
-- Such a function names every table with its schema and has a search_path of its own, so that
-- nobody can put another table in between. The schema may come from the search_path of whoever
-- migrates. So the bodies say %home%, and the last statement of this file replaces it with the
-- name. Until then the server must not check the bodies.
--
-- Text that is part of an index is COLLATE "C", compared by its bytes. The order of other
-- collations changes with the operating system or with ICU, and an index in another order finds no
-- duplicate.
SET LOCAL check_function_bodies = off;


-- Messages ----------------------------------------------------------------------------------------

-- One row for each consumer, scope and message that took effect, written in the transaction of the
-- effect. A message that ended as a dead letter has a row as well, which stops every further copy
-- of it.
CREATE TABLE {schema}inbox_message (
    message_id            uuid        NOT NULL,
    consumer              text COLLATE "C" NOT NULL,
    -- The tenant; empty without one.
    scope                 text COLLATE "C" NOT NULL DEFAULT '',
    -- Hash of the content. Another content under a known id is refused.
    fingerprint           bytea       NOT NULL,
    -- What the handler returned.
    result                bytea,
    processed_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    dead_letter           uuid,
    -- Beside the fingerprint of the bytes, of consumers that compare JSON by its content
    -- (PayloadComparison::CanonicalJson).
    canonical_fingerprint bytea,
    -- Source and id together identify a message: the same id from another source is refused.
    source                text,
    -- The guard is one insert that finds the conflict. The message id comes first: it ascends with
    -- time, so inserts stay on the newest leaf of the index.
    CONSTRAINT inbox_message_pkey PRIMARY KEY (message_id, consumer, scope),
    CONSTRAINT inbox_message_consumer_has_1_to_255_bytes CHECK (octet_length(consumer) BETWEEN 1 AND 255),
    CONSTRAINT inbox_message_scope_has_at_most_255_bytes CHECK (octet_length(scope) <= 255),
    CONSTRAINT inbox_message_fingerprint_has_32_bytes CHECK (octet_length(fingerprint) = 32)
) PARTITION BY RANGE (message_id);
COMMENT ON TABLE {schema}inbox_message IS
    'one partition per day (UTC) of the message id''s own time; never give it a DEFAULT partition: a dropped day refuses
its ids because there is no partition to hold them';
-- A redrive clears it in the transaction of the effect.
COMMENT ON COLUMN {schema}inbox_message.dead_letter IS
    'the dead letter that the message ended as; null when it took effect';
COMMENT ON COLUMN {schema}inbox_message.source IS
    'the outbox that the message came from; null in a row of another program that does not write it';

-- Where memory begins: ids generated before this moment are refused. It never moves back.
CREATE TABLE {schema}inbox_retention (
    only_row      boolean     NOT NULL DEFAULT true,
    retained_from timestamptz NOT NULL,
    CONSTRAINT inbox_retention_pkey PRIMARY KEY (only_row),
    CONSTRAINT inbox_retention_has_one_row CHECK (only_row),
    CONSTRAINT inbox_retention_retained_from_is_a_day
        CHECK (retained_from AT TIME ZONE 'UTC' = date_trunc('day', retained_from AT TIME ZONE 'UTC'))
);

-- The days that were made. A day of these that is no partition any more was dropped, detached or
-- moved to another schema, by hand or by a tool. Made again it would be empty, and every message of
-- it that comes again would take effect again. So it is not made again (ADR 6).
CREATE TABLE {schema}inbox_day (
    day date NOT NULL,
    CONSTRAINT inbox_day_pkey PRIMARY KEY (day)
);
COMMENT ON TABLE {schema}inbox_day IS
    'the days of inbox_message that were made and are remembered; a day that is gone is not made again while it is here';

-- Makes a table like its parent, with the parent's key, and attaches it (ADR 6). CREATE TABLE ...
-- PARTITION OF would take an ACCESS EXCLUSIVE lock on the parent, and so wait for every consumer
-- and block it. ATTACH takes SHARE UPDATE EXCLUSIVE, which inserts do not notice. There is no
-- DEFAULT partition that it would have to scan.
--
-- The advisory lock admits one creator or dropper of partitions at a time. It ends with the
-- transaction, so it is safe behind PgBouncer. Its number is the first eight bytes of "inbox_days",
-- combined with the id of the table: inboxes of one database do not wait for each other.
--
-- The time limit: a consumer's transaction may be waiting for its day. It is longer than that of
-- inbox_expire_days, because nobody queues behind a creator, and every process that starts may have
-- to wait for one that creates.
CREATE FUNCTION {schema}inbox_create_days(first_day date, last_day date) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
    today    date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    retained date;
    day      date;
    part     text;
    floors   uuid[];
    excess   record;
    created  bigint := 0;
BEGIN
    IF last_day > today + 366 OR last_day - first_day > 3660 THEN
        RAISE EXCEPTION 'days from % to % are not needed now', first_day, last_day
            USING ERRCODE = 'invalid_parameter_value',
                HINT = 'At most 3660 days at once, and none more than a year ahead.';
    END IF;
    -- If all days exist, no lock is needed.
    IF NOT EXISTS (
        SELECT FROM generate_series(0, last_day - first_day) AS ahead LEFT JOIN (
            pg_inherits AS i JOIN pg_class AS c
                ON c.oid = i.inhrelid AND i.inhparent = '%home%.inbox_message'::regclass)
            ON c.relname = 'inbox_message_' || to_char(first_day + ahead, 'YYYYMMDD')
        WHERE c.oid IS NULL)
    THEN
        RETURN 0;
    END IF;
    PERFORM pg_advisory_xact_lock(7597682998164844593 # '%home%.inbox_message'::regclass::oid::bigint);
    -- Under the lock, so that it does not make a day again that is being dropped at this moment.
    SELECT (r.retained_from AT TIME ZONE 'UTC')::date INTO retained FROM %home%.inbox_retention AS r;
    FOR ahead IN 0 .. last_day - first_day LOOP
        day := first_day + ahead;
        part := 'inbox_message_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN day < retained OR EXISTS (
            SELECT FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
            WHERE i.inhparent = '%home%.inbox_message'::regclass AND c.relname = part);
        INSERT INTO %home%.inbox_day (day) VALUES (day) ON CONFLICT DO NOTHING;
        -- A day ahead of all clocks has no records. On the subscriber of a replication its row may
        -- arrive without its table.
        IF NOT FOUND AND day <= today + 2 THEN
            RAISE EXCEPTION 'the partition % of inbox_message is gone: it was dropped, detached or moved to another schema, '
                'and its messages could take effect again', part
                USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = part,
                    HINT = format('Attach it again. If it is lost, SELECT inbox_expire_days(%L) refuses its messages and all '
                        'earlier ones; DELETE FROM inbox_day WHERE day = %L makes it anew, and its messages can take '
                        'effect again.', day + 1, day);
        END IF;
        -- The smallest ids of the day and of the next one: 48 bits of milliseconds, then zeros.
        SELECT array_agg(
            rpad(lpad(to_hex((extract(epoch FROM bound AT TIME ZONE 'UTC') * 1000)::bigint), 12, '0'),
                32, '0')::uuid
            ORDER BY bound)
        INTO floors FROM unnest(ARRAY[day::timestamp, (day + 1)::timestamp]) AS bound;
        EXECUTE format('CREATE TABLE %home%.%I (LIKE %home%.inbox_message INCLUDING ALL)', part);
        -- Default privileges of the database give nobody more rights on a day than on the table: a
        -- consumer that can remove a record applies a message twice.
        FOR excess IN
            SELECT d.privilege_type AS privilege,
                CASE WHEN d.grantee = 0 THEN 'PUBLIC' ELSE d.grantee::regrole::text END AS holder
            FROM pg_class AS c CROSS JOIN aclexplode(c.relacl) AS d
            WHERE c.oid = format('%home%.%I', part)::regclass AND d.grantee <> c.relowner AND NOT EXISTS (
                SELECT FROM pg_class AS w CROSS JOIN aclexplode(w.relacl) AS r
                WHERE w.oid = '%home%.inbox_message'::regclass AND r.grantee = d.grantee
                    AND r.privilege_type = d.privilege_type)
        LOOP
            EXECUTE format('REVOKE %s ON %home%.%I FROM %s', excess.privilege, part, excess.holder);
        END LOOP;
        EXECUTE format(
            'ALTER TABLE %home%.inbox_message ATTACH PARTITION %home%.%I FOR VALUES FROM (%L) TO (%L)',
            part, floors[1], floors[2]);
        created := created + 1;
    END LOOP;
    RETURN created;
END
$$;
REVOKE ALL ON FUNCTION {schema}inbox_create_days(date, date) FROM PUBLIC;
COMMENT ON FUNCTION {schema}inbox_create_days(date, date) IS
    'makes the missing partitions of these days (UTC), both included, except those that are forgotten; returns how many;
fails for a day that was made before';

-- Moves the beginning of memory, only ever forward, and empties the days before it, each of which
-- refuses every row from then on. Emptying waits for transactions that use this very day, such as a
-- backup or a report. A day that stays in use is left for the next call; its ids are refused
-- already. Once one day was in use, the function no longer waits for the others. It fails for such
-- a day only if it could do nothing else.
--
-- Dropping a day waits for every open transaction of every consumer. So empty days are dropped if
-- the parent's lock is free within the limit; otherwise that is left for the next time.
CREATE FUNCTION {schema}inbox_expire_days(keep_from date) RETURNS SETOF date
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '250ms'
AS $$
DECLARE
    part     text;
    in_use   text;
    has_done boolean;
BEGIN
    IF keep_from > (clock_timestamp() AT TIME ZONE 'UTC')::date THEN
        RAISE EXCEPTION 'today is never forgotten: % lies ahead', keep_from
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_advisory_xact_lock(7597682998164844593 # '%home%.inbox_message'::regclass::oid::bigint);
    -- Where no consumer has begun it, memory begins here: days before it are not made again.
    INSERT INTO %home%.inbox_retention AS r (retained_from)
    VALUES (keep_from::timestamp AT TIME ZONE 'UTC')
    ON CONFLICT (only_row) DO UPDATE SET retained_from = EXCLUDED.retained_from
    WHERE r.retained_from < EXCLUDED.retained_from;
    has_done := FOUND;
    DELETE FROM %home%.inbox_day AS d WHERE d.day < keep_from;
    FOR part IN
        SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = '%home%.inbox_message'::regclass AND c.relname ~ '^inbox_message_[0-9]{8}$'
            AND to_date(right(c.relname, 8), 'YYYYMMDD') < keep_from AND NOT EXISTS (
                SELECT FROM pg_constraint AS k
                WHERE k.conrelid = c.oid AND k.conname = 'inbox_message_day_is_forgotten')
        ORDER BY c.relname
    LOOP
        BEGIN
            EXECUTE format('TRUNCATE TABLE %home%.%I', part);
            EXECUTE format(
                'ALTER TABLE %home%.%I ADD CONSTRAINT inbox_message_day_is_forgotten CHECK (false)', part);
        EXCEPTION WHEN lock_not_available THEN
            in_use := coalesce(in_use, part);
            PERFORM set_config('lock_timeout', '1ms', true);
            CONTINUE;
        END;
        has_done := true;
        RETURN NEXT to_date(right(part, 8), 'YYYYMMDD');
    END LOOP;
    IF in_use IS NOT NULL AND NOT has_done THEN
        RAISE EXCEPTION 'lock timeout: % is in use, so it is not emptied yet', in_use
            USING ERRCODE = 'lock_not_available', TABLE = in_use,
                HINT = 'A backup or a report may read it. The next call empties it.';
    END IF;
    BEGIN
        FOR part IN
            SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
            JOIN pg_constraint AS k ON k.conrelid = c.oid AND k.conname = 'inbox_message_day_is_forgotten'
            WHERE i.inhparent = '%home%.inbox_message'::regclass
            ORDER BY c.relname
        LOOP
            EXECUTE format('DROP TABLE %home%.%I', part);
        END LOOP;
    EXCEPTION WHEN lock_not_available THEN
        NULL;
    END;
END
$$;
REVOKE ALL ON FUNCTION {schema}inbox_expire_days(date) FROM PUBLIC;
COMMENT ON FUNCTION {schema}inbox_expire_days(date) IS
    'forgets the days before this one, for ever; returns those that it emptied. A day that is in use is emptied by a later
call';


-- Failures ----------------------------------------------------------------------------------------

-- Messages whose handler failed and which are to be tried again, and messages in hand.
CREATE TABLE {schema}inbox_attempt (
    consumer        text COLLATE "C" NOT NULL,
    scope           text COLLATE "C" NOT NULL,
    message_id      uuid        NOT NULL,
    -- 0: it failed, and nothing shows that the message itself is the cause.
    attempts        integer     NOT NULL,
    last_error      text        NOT NULL,
    first_failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_at         timestamptz NOT NULL,
    -- A message whose handler ends its process leaves no failure behind. So a consumer notes which
    -- process has a message in hand where an earlier one may have ended with it. The next process
    -- that takes the message counts that in `ends`.
    in_hand         uuid,
    ends            integer     NOT NULL DEFAULT 0,
    -- Failures in a row that were not counted, none of them more than an hour after the one before.
    uncounted       integer     NOT NULL DEFAULT 0,
    CONSTRAINT inbox_attempt_pkey PRIMARY KEY (consumer, scope, message_id),
    CONSTRAINT inbox_attempt_attempts_are_not_negative CHECK (attempts >= 0),
    CONSTRAINT inbox_attempt_ends_are_not_negative CHECK (ends >= 0),
    CONSTRAINT inbox_attempt_uncounted_are_not_negative CHECK (uncounted >= 0)
-- Rows come and go: vacuum before dead rows make up a fifth of the table.
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
COMMENT ON COLUMN {schema}inbox_attempt.in_hand IS
    'the process that has the message in hand; a row without an error says nothing else';
COMMENT ON COLUMN {schema}inbox_attempt.ends IS
    'how many processes had the message in hand and ended without a word';

-- Serves the purge of attempts whose message never came again.
CREATE INDEX inbox_attempt_first_failed_at_idx ON {schema}inbox_attempt (first_failed_at);
-- Serves the search for one message, however many others fail.
CREATE INDEX inbox_attempt_message_idx ON {schema}inbox_attempt (message_id);

-- Messages that an operator has to look at, as they arrived.
CREATE TABLE {schema}inbox_dead_letter (
    id           uuid        NOT NULL,
    consumer     text COLLATE "C" NOT NULL,
    scope        text COLLATE "C" NOT NULL,
    -- Names the delivery: the message id, or for an unreadable delivery a hash of its bytes and
    -- origin.
    subject      uuid        NOT NULL,
    -- Distinguishes two payloads under one id.
    fingerprint  bytea       NOT NULL,
    -- Null for an unreadable delivery.
    message_id   uuid,
    topic        text COLLATE "C" NOT NULL,
    key          text COLLATE "C",
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
    -- The place in the broker that the delivery came from.
    origin       text        NOT NULL,
    dead_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- How it was closed; null while it is open.
    resolution   text,
    resolved_at  timestamptz,
    seq          bigint      GENERATED ALWAYS AS IDENTITY,
    CONSTRAINT inbox_dead_letter_pkey PRIMARY KEY (id),
    -- `held`: behind the dead letter of its key (AfterDeadLetter::HoldKey, ADR 31).
    CONSTRAINT inbox_dead_letter_reason_is_known CHECK (reason IN
        ('poison', 'rejected', 'key_reused', 'too_old', 'from_the_future', 'malformed', 'incomplete',
        'no_scope', 'held')),
    CONSTRAINT inbox_dead_letter_resolution_is_known CHECK (resolution IN
        ('applied', 'applied_late', 'duplicate', 'discarded')),
    CONSTRAINT inbox_dead_letter_is_resolved_at_a_time CHECK ((resolution IS NULL) = (resolved_at IS NULL))
-- Rows come and go: vacuum before dead rows make up a fifth of the table.
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
COMMENT ON COLUMN {schema}inbox_dead_letter.seq IS
    'the order of arrival within a key; the ids come from the clocks of several processes';

-- A delivery that dies again, because its settlement was lost, is counted and not stored twice. One
-- that was given up gets another dead letter: nobody would look at the closed one.
CREATE UNIQUE INDEX inbox_dead_letter_delivery_idx
    ON {schema}inbox_dead_letter (consumer, scope, subject, fingerprint)
    WHERE resolution IS DISTINCT FROM 'discarded';
-- Serves the list of what is open, oldest first.
CREATE INDEX inbox_dead_letter_open_idx ON {schema}inbox_dead_letter (consumer, id) WHERE resolution IS NULL;
-- Serves the search for what holds a key, and has nothing else: a key may have any number of open
-- dead letters that do not hold it. It leaves out deliveries without a message, whose keys can be
-- too long for an index.
CREATE INDEX inbox_dead_letter_key_idx ON {schema}inbox_dead_letter (consumer, scope, topic, key, seq)
    WHERE resolution IS NULL AND key IS NOT NULL AND message_id IS NOT NULL
        AND reason IN ('poison', 'rejected', 'too_old', 'from_the_future', 'held');
-- Serves the search for held messages whose turn it is.
CREATE INDEX inbox_dead_letter_held_idx ON {schema}inbox_dead_letter (consumer, scope, topic, key, seq)
    WHERE resolution IS NULL AND reason = 'held';
-- Serves questions about single messages, and `relay verify`, which asks about many.
CREATE INDEX inbox_dead_letter_subject_idx ON {schema}inbox_dead_letter (subject);
-- Serves the purge of what was resolved long ago.
CREATE INDEX inbox_dead_letter_resolved_at_idx ON {schema}inbox_dead_letter (resolved_at)
    WHERE resolution IS NOT NULL;

-- How a dead letter was closed stays as it is, and only a closed one can be removed. A late
-- application is never removed: its dead letter is the only record of the effect.
CREATE FUNCTION {schema}inbox_keep_resolution() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.resolution IS NULL OR OLD.resolution = 'applied_late' THEN
            RAISE EXCEPTION 'dead letter % is % and is not removed', OLD.id, coalesce(OLD.resolution, 'open')
                USING ERRCODE = 'insufficient_privilege', HINT = 'Redrive or discard what is open.';
        END IF;
        RETURN OLD;
    END IF;
    IF OLD.resolution IS NOT NULL
        AND (NEW.resolution, NEW.resolved_at) IS DISTINCT FROM (OLD.resolution, OLD.resolved_at)
    THEN
        RAISE EXCEPTION 'dead letter % was closed as % at %', OLD.id, OLD.resolution, OLD.resolved_at
            USING ERRCODE = 'insufficient_privilege', HINT = 'A closed dead letter stays as it is.';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER inbox_dead_letter_keep_resolution
    BEFORE DELETE OR UPDATE OF resolution, resolved_at ON {schema}inbox_dead_letter
    FOR EACH ROW EXECUTE FUNCTION {schema}inbox_keep_resolution();


-- Chunks ------------------------------------------------------------------------------------------

-- Messages that arrive in chunks wait here until all chunks have arrived (ADR 13).
--
-- One row for each consumer, scope and message with stored chunks. Its lock lets one transaction at
-- a time count the chunks: of two that bring the last two, the second waits and then sees the chunk
-- of the first.
CREATE TABLE {schema}inbox_chunk_set (
    message_id   uuid        NOT NULL,
    consumer     text COLLATE "C" NOT NULL,
    scope        text COLLATE "C" NOT NULL DEFAULT '',
    -- Of the whole message, as each chunk promises it.
    fingerprint  bytea       NOT NULL,
    -- Of the whole payload.
    bytes        bigint      NOT NULL,
    topic        text        NOT NULL,
    key          text,
    kind         text        NOT NULL,
    source       text        NOT NULL,
    time         timestamptz NOT NULL,
    content_type text        NOT NULL,
    begun_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT inbox_chunk_set_pkey PRIMARY KEY (message_id, consumer, scope, fingerprint),
    CONSTRAINT inbox_chunk_set_consumer_has_1_to_255_bytes CHECK (octet_length(consumer) BETWEEN 1 AND 255),
    CONSTRAINT inbox_chunk_set_scope_has_at_most_255_bytes CHECK (octet_length(scope) <= 255),
    CONSTRAINT inbox_chunk_set_fingerprint_has_32_bytes CHECK (octet_length(fingerprint) = 32),
    CONSTRAINT inbox_chunk_set_bytes_are_positive CHECK (bytes > 0)
);

-- Serves the expiry of what stays incomplete, and its list, oldest first.
CREATE INDEX inbox_chunk_set_begun_at_idx ON {schema}inbox_chunk_set (begun_at);

-- The chunks. A message that was split again, because the limit was changed, has chunks of two
-- splits, which differ in `chunks`.
CREATE TABLE {schema}inbox_chunk (
    message_id  uuid    NOT NULL,
    consumer    text COLLATE "C" NOT NULL,
    scope       text COLLATE "C" NOT NULL,
    fingerprint bytea   NOT NULL,
    chunks      integer NOT NULL,
    number      integer NOT NULL,
    payload     bytea   NOT NULL,
    -- Stores each chunk once; counts them, and reads them in their order.
    CONSTRAINT inbox_chunk_pkey PRIMARY KEY (message_id, consumer, scope, fingerprint, chunks, number),
    -- The row of the set is the lock; without it nobody would expire the chunks.
    CONSTRAINT inbox_chunk_set_fkey FOREIGN KEY (message_id, consumer, scope, fingerprint)
        REFERENCES {schema}inbox_chunk_set (message_id, consumer, scope, fingerprint),
    CONSTRAINT inbox_chunk_number_is_one_of_chunks CHECK (number >= 0 AND number < chunks)
);

-- Chunks stay for moments: compressing them would only cost time.
ALTER TABLE {schema}inbox_chunk ALTER COLUMN payload SET STORAGE EXTERNAL;


-- Operators ---------------------------------------------------------------------------------------

-- Who decided what about a dead letter, and why. Its consumer, which has the handler, carries out a
-- redrive: until then the row is the request.
CREATE TABLE {schema}inbox_audit (
    seq         bigint      GENERATED ALWAYS AS IDENTITY,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor       text        NOT NULL,
    note        text        NOT NULL,
    selection   text,
    action      text        NOT NULL,
    dead_letter uuid        NOT NULL,
    consumer    text COLLATE "C" NOT NULL,
    accept_late boolean     NOT NULL DEFAULT false,
    -- The result: how the dead letter was closed, or the error.
    outcome     text,
    done_at     timestamptz,
    decision    uuid,
    CONSTRAINT inbox_audit_pkey PRIMARY KEY (seq),
    CONSTRAINT inbox_audit_action_is_known CHECK (action IN ('redrive', 'discard')),
    CONSTRAINT inbox_audit_has_an_outcome_at_a_time CHECK ((outcome IS NULL) = (done_at IS NULL))
);
COMMENT ON COLUMN {schema}inbox_audit.selection IS
    'the filter by which the dead letter was chosen, and how many it chose; null when there was no filter';

COMMENT ON COLUMN {schema}inbox_audit.decision IS
    'the same in the rows of all dead letters of one confirmation; null when each was decided about by itself';

-- Serves the result of a decision; a confirmation that is sent twice finds the first one.
CREATE INDEX inbox_audit_decision_idx ON {schema}inbox_audit (decision, dead_letter) WHERE decision IS NOT NULL;

-- Serves the decisions about a dead letter.
CREATE INDEX inbox_audit_letter_idx ON {schema}inbox_audit (dead_letter, seq);

-- Serves the consumers' search for requests, in their order.
CREATE INDEX inbox_audit_open_idx ON {schema}inbox_audit (consumer, seq) WHERE done_at IS NULL;

-- One request for a dead letter at a time.
CREATE UNIQUE INDEX inbox_audit_requested_idx ON {schema}inbox_audit (consumer, dead_letter)
    WHERE done_at IS NULL;

-- Serves the removal of old decisions. A redrive that was not carried out yet stays.
CREATE INDEX inbox_audit_done_idx ON {schema}inbox_audit (at) WHERE done_at IS NOT NULL;

{audit_purge}

-- A duplicate leaves no row of its own. Consumers store how many there were in each minute, and how
-- many messages took effect, so that their rate can be read from the tables.
CREATE TABLE {schema}inbox_minute (
    consumer   text COLLATE "C" NOT NULL,
    minute     timestamptz NOT NULL,
    applied    bigint      NOT NULL,
    duplicates bigint      NOT NULL,
    CONSTRAINT inbox_minute_pkey PRIMARY KEY (consumer, minute),
    CONSTRAINT inbox_minute_counts_are_not_negative CHECK (applied >= 0 AND duplicates >= 0)
);
COMMENT ON TABLE {schema}inbox_minute IS
    'what consumers counted in each minute of the last day; a killed process takes its last counts with it';


-- Other languages ---------------------------------------------------------------------------------

-- The guard and the dead letters for consumers that do not have the library. They run with the
-- caller's rights and write what the library writes, so `relay dead`, `relay verify` and a consumer
-- of the library find the same rows. Errors are cut to 4,096 characters.

-- Each part after its length: equal texts that are cut differently have different fingerprints.
CREATE FUNCTION {schema}inbox_fingerprint(kind text, content_type text, payload bytea) RETURNS bytea
LANGUAGE sql STABLE
AS $$
    SELECT sha256(
        int8send(length(convert_to(kind, 'UTF8'))::bigint) || convert_to(kind, 'UTF8')
        || int8send(length(convert_to(content_type, 'UTF8'))::bigint) || convert_to(content_type, 'UTF8')
        || int8send(length(payload)::bigint) || payload)
$$;
COMMENT ON FUNCTION {schema}inbox_fingerprint(text, text, bytea) IS
    'what must not change under one message id';

-- Null for an id that is no UUIDv7, or whose year is after 9999.
CREATE FUNCTION {schema}inbox_generated_at(message_id uuid) RETURNS timestamptz
LANGUAGE sql STABLE
AS $$
    SELECT to_timestamp(i.millis / 1000.0)
    FROM (VALUES (('x' || translate(left($1::text, 13), '-', ''))::bit(48)::bigint)) AS i (millis)
    WHERE get_byte(uuid_send($1), 6) >> 4 = 7 AND get_byte(uuid_send($1), 8) >> 6 = 2 AND i.millis < 253402300800000
$$;
COMMENT ON FUNCTION {schema}inbox_generated_at(uuid) IS
    'when a message id was generated; null when it is none';

-- Answers with a word instead of an error, because an error would abort the transaction in which
-- the dead letter is stored. The words of a refusal are reasons of dead letters.
CREATE FUNCTION {schema}inbox_admit(
    consumer     text,
    message_id   uuid,
    kind         text,
    content_type text,
    payload      bytea,
    source       text DEFAULT NULL,
    scope        text DEFAULT ''
) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    print    bytea := {schema}inbox_fingerprint(kind, content_type, payload);
    made_at  timestamptz := {schema}inbox_generated_at(message_id);
    made_on  date := (made_at AT TIME ZONE 'UTC')::date;
    retained timestamptz;
    stored   record;
BEGIN
    IF print IS NULL OR consumer IS NULL OR message_id IS NULL OR scope IS NULL THEN
        RAISE EXCEPTION 'consumer, message id, kind, content type, payload and scope must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    ELSIF made_at IS NULL THEN
        RETURN 'malformed';
    END IF;
    SELECT r.retained_from INTO retained FROM {schema}inbox_retention AS r;
    IF made_at < retained THEN
        RETURN 'too_old';
    ELSIF made_at > clock_timestamp() + interval '1 day' THEN
        RETURN 'from_the_future';
    ELSIF NOT EXISTS (SELECT FROM {schema}inbox_day AS d WHERE d.day = made_on) THEN
        -- Not the fault of the message: it may be as old as the inbox remembers.
        RAISE EXCEPTION 'the inbox has no day % for message %', made_on, message_id
            USING ERRCODE = 'object_not_in_prerequisite_state',
                HINT = 'Run SELECT inbox_create_days(current_date - 14, current_date + 7) once a day.';
    END IF;
    -- The caller acknowledges after the commit: a crash must not undo it.
    PERFORM set_config('synchronous_commit', 'local', true)
    WHERE current_setting('synchronous_commit') = 'off';
    -- Waits for a transaction that applies the same message.
    INSERT INTO {schema}inbox_message (message_id, consumer, scope, fingerprint, source)
    VALUES (inbox_admit.message_id, inbox_admit.consumer, inbox_admit.scope, print, inbox_admit.source)
    ON CONFLICT (message_id, consumer, scope) DO NOTHING;
    IF FOUND THEN
        DELETE FROM {schema}inbox_attempt AS a WHERE a.consumer = inbox_admit.consumer
            AND a.scope = inbox_admit.scope AND a.message_id = inbox_admit.message_id;
        -- The proof for inbox_finish. It is gone when the transaction ends, or is rolled back to a
        -- savepoint before this call.
        PERFORM set_config('inbox.admitted', concat(current_setting('inbox.admitted', true),
            format('%s %L;', inbox_admit.message_id, inbox_admit.consumer)), true);
        RETURN 'new';
    END IF;
    -- Planned each time: a plan that is kept would lock every day until the transaction ends.
    EXECUTE 'SELECT m.fingerprint, m.source, m.dead_letter FROM {schema}inbox_message AS m
        WHERE m.message_id = $1 AND m.consumer = $2 AND m.scope = $3'
    INTO stored USING inbox_admit.message_id, inbox_admit.consumer, inbox_admit.scope;
    -- Its day was forgotten meanwhile: nothing shows that it took effect.
    IF stored.fingerprint IS NULL THEN
        RETURN 'too_old';
    END IF;
    IF stored.fingerprint <> print OR stored.source <> source THEN
        RETURN 'key_reused';
    END IF;
    RETURN CASE WHEN stored.dead_letter IS NULL THEN 'duplicate' ELSE 'dead_letter' END;
END
$$;
COMMENT ON FUNCTION {schema}inbox_admit(text, uuid, text, text, bytea, text, text) IS
    'admits a message to the caller''s transaction: new (have the effect), duplicate or dead_letter (do nothing), or
why it is refused: key_reused, too_old, from_the_future, malformed';

-- After the handler and before COMMIT. PostgreSQL answers the COMMIT of a failed transaction with a
-- rollback, and one outside of a transaction with a warning: drivers report success for both. Texts
-- have the whole error in the message, because some drivers show no hint.
CREATE FUNCTION {schema}inbox_finish(consumer text, message_id uuid) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    is_applied boolean;
BEGIN
    IF strpos(current_setting('inbox.admitted', true),
        format('%s %L;', inbox_finish.message_id, inbox_finish.consumer)) > 0
    THEN
        RETURN;
    END IF;
    -- Planned each time, for the reason that inbox_admit has.
    EXECUTE 'SELECT EXISTS (SELECT FROM {schema}inbox_message AS m
        WHERE m.message_id = $1 AND m.consumer = $2 AND m.dead_letter IS NULL)'
    INTO is_applied USING inbox_finish.message_id, inbox_finish.consumer;
    IF is_applied THEN
        RAISE EXCEPTION 'the transaction that admitted message % was committed before its handler returned: what it did '
            'until then is the whole effect. A handler leaves COMMIT to its caller', inbox_finish.message_id
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    RAISE EXCEPTION 'the transaction that admitted message % was rolled back, with its effect and its record, before its '
        'handler returned. To undo an effect, a handler raises an error or rolls back to a savepoint of its own',
        inbox_finish.message_id USING ERRCODE = 'invalid_transaction_state';
END
$$;
COMMENT ON FUNCTION {schema}inbox_finish(text, uuid) IS
    'fails unless this transaction admitted the message, by inbox_admit or inbox_take_redrive, and still holds it. Call it
after the handler: when it fails, roll back, count a failure, and do not acknowledge';

-- An admitted message forgets its failures, and so does a dead letter.
CREATE FUNCTION {schema}inbox_count_failure(consumer text, message_id uuid, error text, scope text DEFAULT '')
RETURNS integer
LANGUAGE sql VOLATILE
AS $$
    INSERT INTO {schema}inbox_attempt AS a (consumer, message_id, scope, attempts, last_error, next_at)
    VALUES ($1, $2, $4, 1, left(coalesce(nullif($3, ''), 'no error was given'), 4096), clock_timestamp())
    ON CONFLICT (consumer, scope, message_id) DO UPDATE SET
        attempts = a.attempts + 1, last_error = EXCLUDED.last_error, next_at = EXCLUDED.next_at,
        first_failed_at = CASE WHEN a.last_error = '' THEN clock_timestamp() ELSE a.first_failed_at END,
        in_hand = NULL, uncounted = 0
    RETURNING attempts
$$;
COMMENT ON FUNCTION {schema}inbox_count_failure(text, uuid, text, text) IS
    'counts a failure of a handler whose transaction was rolled back; returns how many there are';

-- Stores a message for an operator, with the row of inbox_message that stops its copies. A delivery
-- that comes again is counted. Without a message id a delivery is known by a hash of what arrived.
--
-- Nothing that a peer writes into a delivery makes it fail: the consumer would end, get the same
-- delivery again, and end again. What cannot be a message is kept as a malformed delivery, and a
-- time that is none is left out. Of its texts, which lists show, 1,000 characters are kept.
CREATE FUNCTION {schema}inbox_store_dead_letter(
    consumer     text,
    message_id   uuid,
    topic        text,
    kind         text,
    content_type text,
    payload      bytea,
    reason       text,
    error        text,
    key          text        DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    source       text        DEFAULT NULL,
    made_at      text        DEFAULT NULL,
    traceparent  text        DEFAULT NULL,
    tracestate   text        DEFAULT NULL,
    origin       text        DEFAULT '',
    scope        text        DEFAULT ''
) RETURNS uuid
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_custom_plan -- for the reason that inbox_admit has
AS $$
#variable_conflict use_column
DECLARE
    body       CONSTANT bytea := coalesce(payload, '');
    print      CONSTANT bytea := {schema}inbox_fingerprint(kind, content_type, body);
    -- The limits of the library. The key is part of an index, which refuses much longer ones.
    problem    CONSTANT text := CASE
        WHEN reason = 'malformed' OR message_id IS NULL THEN ''
        WHEN {schema}inbox_generated_at(message_id) IS NULL THEN format('its id %s is no UUIDv7', message_id)
        WHEN octet_length(key) > 255 THEN format('its key has %s bytes; the limit is 255', octet_length(key))
        WHEN octet_length(topic) > 255 THEN format('its topic has %s bytes; the limit is 255', octet_length(topic))
        WHEN print IS NULL THEN 'it has no kind or no content type'
        WHEN greatest(octet_length(kind), octet_length(content_type), octet_length(source)) > 255
            THEN 'its kind, content type or source has more than 255 bytes'
    END;
    is_message CONSTANT boolean := problem IS NULL;
    -- A delivery that was malformed from the start, or whose id is another message's, may carry the
    -- id of a good message.
    counted    CONSTANT uuid := CASE WHEN reason NOT IN ('malformed', 'key_reused') THEN message_id END;
    pairs      CONSTANT jsonb := (
        SELECT coalesce(jsonb_agg(jsonb_build_array(h.key, coalesce(h.value, '')) ORDER BY h.key COLLATE "C"), '[]')
        FROM jsonb_each_text(nullif(headers, 'null')) AS h);
    made       timestamptz;
    named      uuid := message_id;
    known_by   bytea := decode(repeat('00', 32), 'hex');
    letter     uuid;
    stored     record;
BEGIN
    IF consumer IS NULL OR topic IS NULL OR scope IS NULL OR origin IS NULL THEN
        RAISE EXCEPTION 'consumer, topic, scope and origin must not be null'
            USING ERRCODE = 'null_value_not_allowed';
    ELSIF reason IS NULL OR reason IN ('held', 'incomplete') THEN
        RAISE EXCEPTION 'a dead letter cannot have the reason %', coalesce(reason, 'null')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- The form of RFC 3339. PostgreSQL would also read "yesterday" and "infinity".
    IF made_at ~ '^[0-9]{4}-[0-9-]{5}[Tt ][0-9:]{8}([.][0-9]+)?([Zz]|[+-][0-9:]{5})$' THEN
        BEGIN
            made := made_at::timestamptz;
            made := CASE WHEN made < '10000-01-01Z' THEN made END;
        EXCEPTION WHEN data_exception THEN
            NULL;
        END;
    END IF;
    PERFORM set_config('synchronous_commit', 'local', true)
    WHERE current_setting('synchronous_commit') = 'off';
    IF is_message THEN
        -- The source distinguishes two messages with one id and equal contents.
        known_by := {schema}inbox_fingerprint(coalesce(source, '/unknown'), '', print);
    ELSE
        named := encode(substr({schema}inbox_fingerprint(
            jsonb_build_array(origin, topic, message_id, kind, content_type, source)::text,
            jsonb_build_array(key, pairs, made_at, traceparent, tracestate)::text, body), 1, 16), 'hex')::uuid;
    END IF;
    INSERT INTO {schema}inbox_dead_letter AS d (id, consumer, scope, subject, fingerprint, message_id, topic, key,
        kind, source, time, content_type, headers, traceparent, tracestate, payload, reason, error, attempts, origin)
    VALUES (
        -- A UUID of version 7: the time in milliseconds, then random bits.
        encode(overlay(
            set_byte(uuid_send(gen_random_uuid()), 6, (get_byte(uuid_send(gen_random_uuid()), 6) & 15) | 112)
            PLACING substr(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 3) FROM 1 FOR 6),
            'hex')::uuid,
        inbox_store_dead_letter.consumer, inbox_store_dead_letter.scope, named, known_by,
        CASE WHEN is_message THEN inbox_store_dead_letter.message_id END, left(inbox_store_dead_letter.topic, 1000),
        left(inbox_store_dead_letter.key, 1000), left(inbox_store_dead_letter.kind, 1000),
        CASE WHEN is_message THEN coalesce(inbox_store_dead_letter.source, '/unknown')
            ELSE left(inbox_store_dead_letter.source, 1000) END,
        made, left(inbox_store_dead_letter.content_type, 1000), pairs,
        inbox_store_dead_letter.traceparent, inbox_store_dead_letter.tracestate, body,
        CASE WHEN is_message THEN inbox_store_dead_letter.reason ELSE 'malformed' END,
        left(coalesce(nullif(inbox_store_dead_letter.error, ''), 'no error was given'), 4096)
            || coalesce(' (it is malformed: ' || nullif(problem, '') || ')', ''),
        coalesce((SELECT a.attempts FROM {schema}inbox_attempt AS a WHERE a.consumer = inbox_store_dead_letter.consumer
            AND a.scope = inbox_store_dead_letter.scope AND a.message_id = counted), 0),
        inbox_store_dead_letter.origin)
    ON CONFLICT (consumer, scope, subject, fingerprint) WHERE resolution IS DISTINCT FROM 'discarded' DO UPDATE SET
        deliveries = d.deliveries + 1
    RETURNING d.id INTO letter;
    IF is_message AND reason IN ('poison', 'rejected') AND EXISTS (
        SELECT FROM {schema}inbox_day AS d
        WHERE d.day = ({schema}inbox_generated_at(named) AT TIME ZONE 'UTC')::date)
    THEN
        INSERT INTO {schema}inbox_message (message_id, consumer, scope, fingerprint, dead_letter, source)
        VALUES (named, inbox_store_dead_letter.consumer, inbox_store_dead_letter.scope, print, letter,
            inbox_store_dead_letter.source)
        ON CONFLICT (message_id, consumer, scope) DO NOTHING;
        IF NOT FOUND THEN
            SELECT m.fingerprint, m.source, m.dead_letter INTO stored FROM {schema}inbox_message AS m
            WHERE m.message_id = named AND m.consumer = inbox_store_dead_letter.consumer
                AND m.scope = inbox_store_dead_letter.scope;
            IF stored.fingerprint <> print OR stored.source <> source THEN
                UPDATE {schema}inbox_dead_letter AS d SET reason = 'key_reused'
                WHERE d.id = letter AND d.resolution IS NULL;
            ELSIF stored.dead_letter IS NULL THEN
                -- Another process has applied it meanwhile: there is nothing to decide.
                UPDATE {schema}inbox_dead_letter AS d SET resolution = 'duplicate', resolved_at = clock_timestamp()
                WHERE d.id = letter AND d.resolution IS NULL;
            END IF;
        END IF;
    END IF;
    DELETE FROM {schema}inbox_attempt AS a WHERE a.consumer = inbox_store_dead_letter.consumer
        AND a.scope = inbox_store_dead_letter.scope AND a.message_id = counted;
    RETURN letter;
END
$$;
COMMENT ON FUNCTION {schema}inbox_store_dead_letter(text, uuid, text, text, text, bytea, text, text, text, jsonb, text,
    text, text, text, text, text) IS
    'stores a message for an operator and returns the id of its dead letter; acknowledge the delivery after the commit;
what cannot be a message is stored as malformed, and a time (RFC 3339) that is none as null';

-- A redrive has two steps. The first one is a transaction of its own: it notes that a process has
-- the message in hand. A handler that ends its process leaves the note behind, and the request with
-- it: after five of them, the request is ended instead of begun.
--
-- The note is in the row of the message's failures, which stay: a letter that was refused may have
-- the id of a message that is still being tried.
CREATE FUNCTION {schema}inbox_begin_redrive(consumer text) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
    request record;
    noted   integer;
BEGIN
    LOOP
        SELECT a.seq, d.scope, d.message_id INTO request
        FROM {schema}inbox_audit AS a LEFT JOIN {schema}inbox_dead_letter AS d ON d.id = a.dead_letter
        -- In an order that only the index of open requests has: by seq alone, the planner would
        -- rather read all decisions that are done, once it believes that many are open.
        WHERE a.consumer BETWEEN inbox_begin_redrive.consumer AND inbox_begin_redrive.consumer AND a.done_at IS NULL
        ORDER BY a.consumer, a.seq LIMIT 1 FOR UPDATE OF a SKIP LOCKED;
        IF request.message_id IS NULL THEN
            RETURN request.seq;
        END IF;
        INSERT INTO {schema}inbox_attempt AS t (consumer, scope, message_id, attempts, last_error, next_at, ends)
        VALUES (inbox_begin_redrive.consumer, request.scope, request.message_id, 0, '', clock_timestamp(), 1)
        ON CONFLICT (consumer, scope, message_id) DO UPDATE SET ends = t.ends + 1
        RETURNING t.ends INTO noted;
        IF noted <= 5 THEN
            RETURN request.seq;
        END IF;
        WITH noted AS (
            DELETE FROM {schema}inbox_attempt AS t WHERE t.consumer = inbox_begin_redrive.consumer
                AND t.scope = request.scope AND t.message_id = request.message_id AND t.last_error = '')
        UPDATE {schema}inbox_attempt AS t SET ends = 0 WHERE t.consumer = inbox_begin_redrive.consumer
            AND t.scope = request.scope AND t.message_id = request.message_id AND t.last_error <> '';
        UPDATE {schema}inbox_audit AS a
        SET outcome = 'five processes ended, lost their database or met a conflict while they had it in hand',
            done_at = clock_timestamp()
        WHERE a.seq = request.seq;
    END LOOP;
END
$$;
COMMENT ON FUNCTION {schema}inbox_begin_redrive(text) IS
    'the next redrive that an operator asked for, which this process has in hand from now on; null when there is none.
Commit before inbox_take_redrive';

-- The second step closes the dead letter in advance, in the transaction of the effect: a rollback
-- opens it again.
CREATE FUNCTION {schema}inbox_take_redrive(consumer text, request bigint)
RETURNS TABLE (dead_letter uuid, message_id uuid, topic text, key text, kind text, content_type text, payload bytea,
    headers jsonb, source text, scope text)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
SET plan_cache_mode = force_custom_plan -- for the reason that inbox_admit has
AS $$
#variable_conflict use_column
DECLARE
    named  uuid;
    letter record;
    ending text;
BEGIN
    SELECT a.dead_letter INTO named FROM {schema}inbox_audit AS a
    WHERE a.seq = inbox_take_redrive.request AND a.consumer = inbox_take_redrive.consumer AND a.done_at IS NULL
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT d.* INTO letter FROM {schema}inbox_dead_letter AS d WHERE d.id = named FOR UPDATE;
    IF NOT FOUND THEN
        ending := 'there is no such dead letter';
    ELSIF letter.resolution IS NOT NULL THEN
        ending := letter.resolution;
    ELSIF letter.message_id IS NULL OR letter.reason IN ('malformed', 'incomplete', 'no_scope') THEN
        ending := 'it is not a complete message, or its tenant is unknown';
    ELSE
        UPDATE {schema}inbox_message AS m SET dead_letter = NULL
        WHERE m.message_id = letter.message_id AND m.consumer = letter.consumer AND m.scope = letter.scope
            AND m.dead_letter = letter.id;
        IF FOUND THEN
            ending := 'applied';
            PERFORM set_config('inbox.admitted', concat(current_setting('inbox.admitted', true),
                format('%s %L;', letter.message_id, letter.consumer)), true);
        ELSE
            ending := {schema}inbox_admit(letter.consumer, letter.message_id, letter.kind, letter.content_type,
                letter.payload, letter.source, letter.scope);
            ending := CASE ending WHEN 'new' THEN 'applied' WHEN 'duplicate' THEN ending
                ELSE 'it is refused: ' || ending END;
        END IF;
        UPDATE {schema}inbox_dead_letter AS d SET resolution = ending, resolved_at = clock_timestamp()
        WHERE d.id = letter.id AND ending IN ('applied', 'duplicate');
    END IF;
    UPDATE {schema}inbox_audit AS a SET outcome = ending, done_at = clock_timestamp()
    WHERE a.seq = inbox_take_redrive.request;
    WITH noted AS (
        DELETE FROM {schema}inbox_attempt AS t WHERE t.consumer = letter.consumer AND t.scope = letter.scope
            AND t.message_id = letter.message_id AND t.last_error = '')
    UPDATE {schema}inbox_attempt AS t SET ends = 0 WHERE t.consumer = letter.consumer AND t.scope = letter.scope
        AND t.message_id = letter.message_id AND t.last_error <> '';
    IF ending = 'applied' AND letter.resolution IS NULL THEN
        RETURN QUERY SELECT letter.id, letter.message_id, letter.topic, letter.key, letter.kind,
            letter.content_type, letter.payload,
            (SELECT coalesce(jsonb_object_agg(h.pair ->> 0, h.pair ->> 1), '{}')
                FROM jsonb_array_elements(letter.headers) AS h (pair)),
            letter.source, letter.scope;
    END IF;
END
$$;
COMMENT ON FUNCTION {schema}inbox_take_redrive(text, bigint) IS
    'the message of a redrive that was begun, admitted to the caller''s transaction; no row when there is nothing to do,
because it cannot be redriven, or another process carries it out';

-- Ends only the request that was begun: an operator may have asked again meanwhile.
CREATE FUNCTION {schema}inbox_fail_redrive(consumer text, request bigint, error text) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
    WITH failed AS (
        UPDATE {schema}inbox_audit AS a SET done_at = clock_timestamp(),
            -- These words alone say how a dead letter was closed.
            outcome = CASE WHEN $3 IN ('applied', 'applied_late', 'duplicate', 'discarded') THEN 'it failed: ' ELSE '' END
                || left(coalesce(nullif($3, ''), 'no error was given'), 4096)
        WHERE a.seq = $2 AND a.consumer = $1 AND a.done_at IS NULL RETURNING a.dead_letter),
    noted AS (
        DELETE FROM {schema}inbox_attempt AS t USING {schema}inbox_dead_letter AS d, failed AS f
        WHERE d.id = f.dead_letter AND t.consumer = d.consumer AND t.scope = d.scope AND t.message_id = d.message_id
            AND t.last_error = ''),
    ended AS (
        UPDATE {schema}inbox_attempt AS t SET ends = 0 FROM {schema}inbox_dead_letter AS d, failed AS f
        WHERE d.id = f.dead_letter AND t.consumer = d.consumer AND t.scope = d.scope AND t.message_id = d.message_id
            AND t.last_error <> '')
    SELECT EXISTS (SELECT FROM failed)
$$;
COMMENT ON FUNCTION {schema}inbox_fail_redrive(text, bigint, text) IS
    'ends a redrive that was begun and whose handler failed, after the rollback; the dead letter stays open, and the audit
has the error';

-- Does for consumers without the library what maintenance of the library does. Each part fails
-- alone, and the text of its error is returned: a backup that reads an old day, or a day that is
-- gone, does not stop a consumer. Only a missing partition of today is an error.
--
-- The caller passes the date (UTC) of its own clock, and the earlier one of both clocks counts. If
-- one clock were believed that is far ahead for a moment, every message would be too old, for ever.
-- Emptying days is the last part, because its locks last until the transaction ends.
CREATE FUNCTION {schema}inbox_maintain(today date, retention_days integer DEFAULT 14) RETURNS SETOF text
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    here   CONSTANT date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    agreed CONSTANT date := least(today, here);
    part   text;
BEGIN
    IF today IS NULL OR retention_days IS NULL OR retention_days NOT BETWEEN 1 AND 400 THEN
        RAISE EXCEPTION 'the date must not be null, and days are retained for 1 to 400 days, not for %', retention_days
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM {schema}inbox_create_days(here, here);
    FOREACH part IN ARRAY ARRAY[
        'SELECT {schema}inbox_create_days($1 + 1, $1 + 7)',
        'SELECT {schema}inbox_create_days($1 - $3, $1 - 1)',
        'DELETE FROM {schema}inbox_attempt WHERE ctid = ANY (ARRAY(
            SELECT t.ctid FROM {schema}inbox_attempt AS t WHERE t.first_failed_at < ($2 - $3)
            ORDER BY t.first_failed_at LIMIT 10000 FOR UPDATE SKIP LOCKED))',
        'DELETE FROM {schema}inbox_dead_letter WHERE ctid = ANY (ARRAY(
            SELECT d.ctid FROM {schema}inbox_dead_letter AS d WHERE d.resolution IS NOT NULL
            AND d.resolution <> ''applied_late'' AND d.resolved_at < ($2 - 30)
            ORDER BY d.resolved_at LIMIT 10000 FOR UPDATE SKIP LOCKED))',
        'SELECT {schema}inbox_purge_audit(($2 - 1096)::timestamp AT TIME ZONE ''UTC'', 10000)',
        'SELECT {schema}inbox_expire_days($2 - $3)']
    LOOP
        BEGIN
            EXECUTE part USING here, agreed, retention_days;
        EXCEPTION WHEN OTHERS THEN
            RETURN NEXT SQLERRM;
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION {schema}inbox_maintain(date, integer) IS
    'makes and forgets days, and removes what is no longer needed; returns what it could not do. Call it every hour with
the date (UTC) of the caller''s own clock, in a transaction of its own';


{home}
