-- The outbox: an append-only log that producers write in their own transactions, and the tables
-- that relays and operators keep beside it.
--
--   log         outbox_message, in eight segments; functions for producers
--   nodes       outbox_node: numbers for producers that make ids themselves
--   relays      outbox_relay, outbox_exception, outbox_parked, outbox_rebased
--   operators   outbox_pause, outbox_audit, outbox_operation
--   histories   outbox_identity, outbox_server_run; repairs after a restore or a failover
--   retention   outbox_retention; what removes old rows
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


-- Log ---------------------------------------------------------------------------------------------

-- A version 7 UUID (RFC 9562): 48 bits of milliseconds, then the version, then random bits.
CREATE FUNCTION {schema}outbox_new_message_id() RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$
    SELECT encode(
        set_byte(
            overlay(uuid_send(gen_random_uuid())
                PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                FROM 1 FOR 6),
            6,
            -- The variant is right already: gen_random_uuid makes version 4 with the same one.
            112 | (get_byte(uuid_send(gen_random_uuid()), 6) & 15)),
        'hex')::uuid
$$;
COMMENT ON FUNCTION {schema}outbox_new_message_id() IS
    'a version 7 UUID of the present moment, for producers that bring no message id';

-- A producer in any language writes a row with a plain INSERT in its own transaction:
--   INSERT INTO outbox_message (topic, key, payload)
--   VALUES ('orders', 'order-7', convert_to('...', 'UTF8'));
-- or calls outbox_enqueue or outbox_enqueue_json, which check more and say what is wrong.
--
-- The log is a ring of eight segments (ADR 10), so that history is removed by TRUNCATE of a whole
-- segment: in constant time, without a lock that a producer of another segment would notice.
--
-- The message id alone decides the segment of a row: bits 26 to 28 of the id's milliseconds. A
-- segment takes the ids of 2^26 ms (18 h 38 min 28.864 s) and has its next turn after 6 days 5 h.
-- - One id has one segment, so an id that is unique within its segment is unique in the log, until
--   the segment is emptied.
-- - Every id has a segment that exists: no producer waits for one to be made.
-- - A row that is written late, by a transaction that was open while its segment was emptied, has
--   its place all the same.
CREATE TABLE {schema}outbox_message (
    -- The first column, because defaults are evaluated in the order of columns: no transaction gets
    -- an id before it has its xid. The proof that a relay misses no row rests on this.
    xid          xid8        NOT NULL DEFAULT pg_current_xact_id(),
    -- Always generated: an id chosen by a producer could lie behind the relays. CACHE 1: so could an
    -- id that a session keeps in reserve. An identity needs no grant on its sequence.
    id           bigint      GENERATED ALWAYS AS IDENTITY
                             (SEQUENCE NAME {schema}outbox_message_id_seq CACHE 1),
    message_id   uuid        NOT NULL DEFAULT {schema}outbox_new_message_id(),
    topic        text        NOT NULL,
    -- Messages of one key leave in the order of their ids.
    key          text,
    kind         text,
    content_type text        NOT NULL DEFAULT 'application/json',
    headers      jsonb,
    -- W3C Trace Context of the producer.
    traceparent  text,
    tracestate   text,
    payload      bytea       NOT NULL,
    -- The message leaves at this time or later; null: at once.
    deliver_at   timestamptz,
    enqueued_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- COPY and OVERRIDING SYSTEM VALUE store the id that they bring. Marks of relays begin at 0.
    CONSTRAINT outbox_message_id_is_positive CHECK (id > 0),
    CONSTRAINT outbox_message_message_id_is_version_7 CHECK (get_byte(uuid_send(message_id), 6) >> 4 = 7),
    -- What every broker accepts.
    CONSTRAINT outbox_message_topic_has_1_to_255_bytes CHECK (octet_length(topic) BETWEEN 1 AND 255),
    CONSTRAINT outbox_message_key_has_1_to_255_bytes CHECK (octet_length(key) BETWEEN 1 AND 255),
    CONSTRAINT outbox_message_kind_has_1_to_255_bytes CHECK (octet_length(kind) BETWEEN 1 AND 255),
    CONSTRAINT outbox_message_content_type_has_1_to_255_bytes
        CHECK (octet_length(content_type) BETWEEN 1 AND 255),
    CONSTRAINT outbox_message_headers_are_an_object CHECK (jsonb_typeof(headers) = 'object'),
    -- What a client library can represent, and what clock_timestamp() can be subtracted from.
    CONSTRAINT outbox_message_deliver_at_is_finite CHECK (deliver_at BETWEEN '1970-01-01Z' AND '9999-12-31Z'),
    CONSTRAINT outbox_message_enqueued_at_is_finite
        CHECK (enqueued_at BETWEEN '1970-01-01Z' AND '9999-12-31Z')
) PARTITION BY LIST (((get_byte(uuid_send(message_id), 2) >> 2) & 7));
COMMENT ON TABLE {schema}outbox_message IS
    'append-only: rows are never updated and never deleted one by one; segments are emptied whole by outbox_expire_segment';
COMMENT ON COLUMN {schema}outbox_message.kind IS
    'the CloudEvents type; where it is null, the topic is the type';

-- A key over all segments would have to contain the expression that they are partitioned by. One in
-- each segment is as good, because an id has one segment.
CREATE TABLE {schema}outbox_message_0 PARTITION OF {schema}outbox_message
    (PRIMARY KEY (id), UNIQUE (message_id)) FOR VALUES IN (0);
CREATE TABLE {schema}outbox_message_1 PARTITION OF {schema}outbox_message
    (PRIMARY KEY (id), UNIQUE (message_id)) FOR VALUES IN (1);
CREATE TABLE {schema}outbox_message_2 PARTITION OF {schema}outbox_message
    (PRIMARY KEY (id), UNIQUE (message_id)) FOR VALUES IN (2);
CREATE TABLE {schema}outbox_message_3 PARTITION OF {schema}outbox_message
    (PRIMARY KEY (id), UNIQUE (message_id)) FOR VALUES IN (3);
CREATE TABLE {schema}outbox_message_4 PARTITION OF {schema}outbox_message
    (PRIMARY KEY (id), UNIQUE (message_id)) FOR VALUES IN (4);
CREATE TABLE {schema}outbox_message_5 PARTITION OF {schema}outbox_message
    (PRIMARY KEY (id), UNIQUE (message_id)) FOR VALUES IN (5);
CREATE TABLE {schema}outbox_message_6 PARTITION OF {schema}outbox_message
    (PRIMARY KEY (id), UNIQUE (message_id)) FOR VALUES IN (6);
CREATE TABLE {schema}outbox_message_7 PARTITION OF {schema}outbox_message
    (PRIMARY KEY (id), UNIQUE (message_id)) FOR VALUES IN (7);
DO $$
BEGIN
    FOR number IN 0 .. 7 LOOP
        EXECUTE format('COMMENT ON INDEX {schema}outbox_message_%s_pkey IS %L', number,
            'reads a difference in the order of ids; joins exceptions with their messages');
        EXECUTE format('COMMENT ON INDEX {schema}outbox_message_%s_message_id_key IS %L', number,
            'detects a second enqueue of one id; finds out whether an unknown commit happened; replays by message id');
    END LOOP;
END
$$;

CREATE INDEX outbox_message_xid_id_idx ON {schema}outbox_message (xid, id);
COMMENT ON INDEX {schema}outbox_message_xid_id_idx IS
    'reads the rows of transactions that were in flight when the mark before was taken';

-- A relay finds a row by its transaction id and its id. A dump of data only, or an INSERT that
-- names these columns, brings ids of another time. Where both lie behind a cursor, the row would
-- never leave. So only a log that no relay reads yet takes the transaction id of another
-- transaction: that is a restore. The lock keeps relays out until it has committed.
CREATE FUNCTION {schema}outbox_check_transaction() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    is_read boolean := EXISTS (SELECT FROM %home%.outbox_relay);
BEGIN
    IF NOT is_read THEN
        LOCK TABLE %home%.outbox_relay IN SHARE MODE;
        -- A snapshot from before the lock does not show a relay that has begun meanwhile.
        is_read := EXISTS (SELECT FROM %home%.outbox_relay)
            OR current_setting('transaction_isolation') <> 'read committed';
    END IF;
    IF is_read THEN
        RAISE EXCEPTION 'the row % of outbox_message brings the transaction id %, and the transaction that writes it is %: '
            'relays could pass it without publishing it', NEW.id, NEW.xid, pg_current_xact_id()
            USING ERRCODE = 'generated_always',
            HINT = 'Leave out xid and id. To move rows from another outbox, load them into a table of another name, and run '
                'INSERT INTO outbox_message (message_id, topic, key, kind, content_type, headers, traceparent, tracestate, '
                'payload, deliver_at, enqueued_at) SELECT the same columns, ORDER BY id. A restore into an empty outbox must load '
                'outbox_message before outbox_relay, in READ COMMITTED.';
    END IF;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION {schema}outbox_check_transaction() FROM PUBLIC;
COMMENT ON FUNCTION {schema}outbox_check_transaction() IS
    'refuses a row that brings the id of another transaction, unless no relay reads the log yet';

-- AFTER, so that COPY still writes many rows at once. For other rows the function is not called.
CREATE TRIGGER outbox_message_xid_is_own AFTER INSERT ON {schema}outbox_message FOR EACH ROW
WHEN (NEW.xid IS DISTINCT FROM pg_current_xact_id())
EXECUTE FUNCTION {schema}outbox_check_transaction();
-- ALWAYS: tools that replicate rows set session_replication_role to replica, which stops other
-- triggers, and bring the ids of another server.
DO $$
BEGIN
    ALTER TABLE {schema}outbox_message ENABLE ALWAYS TRIGGER outbox_message_xid_is_own;
    -- Old servers do not pass it on to the segments.
    FOR number IN 0 .. 7 LOOP
        EXECUTE format('ALTER TABLE {schema}outbox_message_%s ENABLE ALWAYS TRIGGER outbox_message_xid_is_own', number);
    END LOOP;
END
$$;

-- Checks topic, key and the other names. Its error says what is wrong.
CREATE FUNCTION {schema}outbox_check_text(what text, value text, accepted text) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF octet_length(value) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION '% has % bytes; it must have 1 to 255', what, octet_length(value)
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF value !~ accepted THEN
        RAISE EXCEPTION '% "%" has characters that are not accepted', what, left(value, 64)
            USING ERRCODE = 'invalid_parameter_value', HINT = format('It must match %s', accepted);
    END IF;
END
$$;

-- The same checks as in the library. A plain INSERT is not checked like this: the relay parks what
-- is no message.
CREATE FUNCTION {schema}outbox_enqueue(
    topic        text,
    payload      bytea,
    key          text        DEFAULT NULL,
    kind         text        DEFAULT NULL,
    content_type text        DEFAULT 'application/octet-stream',
    headers      jsonb       DEFAULT NULL,
    deliver_at   timestamptz DEFAULT NULL,
    message_id   uuid        DEFAULT NULL,
    traceparent  text        DEFAULT NULL,
    tracestate   text        DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
DECLARE
    new_id  uuid := coalesce(message_id, {schema}outbox_new_message_id());
    -- The time in an id that the producer brings. The library knows which times its consumers
    -- accept; here these are the limits of the widest window.
    made_at timestamptz := to_timestamp(
        ('x' || translate(left(message_id::text, 13), '-', ''))::bit(48)::bigint / 1000.0);
    oldest  CONSTANT interval := '366 days';
    ahead   CONSTANT interval := '1 day';
    header  record;
BEGIN
    IF topic IS NULL OR payload IS NULL THEN
        RAISE EXCEPTION 'topic and payload must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    PERFORM {schema}outbox_check_text('topic', topic, '^[A-Za-z0-9._/:#-]+$');
    PERFORM {schema}outbox_check_text('key', key, '^[^[:cntrl:]]+$');
    PERFORM {schema}outbox_check_text('kind', kind, '^[^[:cntrl:]]+$');
    PERFORM {schema}outbox_check_text('content type', coalesce(content_type, ''), '^[ -~]+$');
    -- In two parts: as one, it would look like a name in the schema vnd.
    IF content_type = 'application/vnd' || '.outbox.erased' THEN
        RAISE EXCEPTION 'content type % is reserved for messages that an operator has erased; give the type of the payload',
                content_type
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF get_byte(uuid_send(message_id), 6) >> 4 <> 7 THEN
        RAISE EXCEPTION 'message id % is not a version 7 UUID', message_id
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out and one is made.';
    ELSIF get_byte(uuid_send(message_id), 8) >> 6 <> 2 THEN
        RAISE EXCEPTION 'message id % has version 7, but a different variant; send a UUID of RFC 9562, whose fourth '
                'group begins with 8, 9, a or b', message_id
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF made_at >= '10000-01-01Z' THEN
        RAISE EXCEPTION 'message id % contains a time after the year 9999; use the current time in milliseconds', message_id
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF made_at < clock_timestamp() - oldest THEN
        RAISE EXCEPTION 'token % was generated at %, and tokens from before % are no longer remembered: find out '
                'whether it took effect, and generate a new one if it did not',
                message_id, made_at, clock_timestamp() - oldest
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF made_at > clock_timestamp() + ahead THEN
        RAISE EXCEPTION 'token % was generated at %, but the newest accepted time is %: correct the clock or the '
                'business time that it was generated from', message_id, made_at, clock_timestamp() + ahead
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'headers are a JSON %; they must be an object of texts', jsonb_typeof(headers)
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF traceparent !~ '^00-[0-9a-f]+-[0-9a-f]+-[0-9a-f][0-9a-f]$' OR length(traceparent) <> 55 THEN
        RAISE EXCEPTION 'traceparent "%" is not of the form 00-<32 hex>-<16 hex>-<2 hex>',
                left(traceparent, 64)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR header IN SELECT h.key AS name, h.value FROM jsonb_each(headers) AS h LOOP
        PERFORM {schema}outbox_check_text('header name', header.name, '^[A-Za-z0-9._-]+$');
        IF lower(header.name COLLATE "C") ~ '^(ce[_-]|cloudevents_|(content-type|traceparent|tracestate|message-id)$)' THEN
            RAISE EXCEPTION 'header name "%" is reserved for the envelope; choose another name', header.name
                USING ERRCODE = 'invalid_parameter_value',
                HINT = 'Reserved are ce_*, ce-*, cloudEvents_*, content-type, traceparent, tracestate and message-id. '
                    'What they say has parameters of its own.';
        ELSIF jsonb_typeof(header.value) <> 'string'
            OR octet_length(header.value #>> ARRAY[]::text[]) > 8192
        THEN
            RAISE EXCEPTION 'header "%" must be a text of at most 8192 bytes', header.name
                USING ERRCODE = 'invalid_parameter_value';
        ELSIF translate(header.value #>> ARRAY[]::text[], E'\t', '') ~ '[[:cntrl:]]' THEN
            RAISE EXCEPTION 'header "%" has a control character', header.name
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Of these a header takes the tab only.';
        END IF;
    END LOOP;
    INSERT INTO {schema}outbox_message
        (message_id, topic, key, kind, content_type, headers, traceparent, tracestate, payload, deliver_at)
    VALUES
        (new_id, topic, key, kind, content_type, headers, traceparent, tracestate, payload, deliver_at);
    RETURN new_id;
END
$$;
COMMENT ON FUNCTION {schema}outbox_enqueue(text, bytea, text, text, text, jsonb, timestamptz, uuid, text, text) IS
    'enqueues a message in the caller''s transaction and returns its id; a second enqueue of one id is a unique violation';

CREATE FUNCTION {schema}outbox_enqueue_json(
    topic        text,
    payload      jsonb,
    key          text        DEFAULT NULL,
    kind         text        DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    deliver_at   timestamptz DEFAULT NULL,
    message_id   uuid        DEFAULT NULL
) RETURNS uuid
LANGUAGE sql VOLATILE
AS $$
    SELECT {schema}outbox_enqueue(topic, convert_to(payload::text, 'UTF8'), key, kind, 'application/json',
        headers, deliver_at, message_id)
$$;
COMMENT ON FUNCTION {schema}outbox_enqueue_json(text, jsonb, text, text, jsonb, timestamptz, uuid) IS
    'as outbox_enqueue, for a JSON payload';

-- A fingerprint has the same parts and lengths as the library's own: type, content type, payload.
-- With it no producer has to read payloads. The digest of a header has the same form, of its name,
-- an empty text and its value.
CREATE FUNCTION {schema}outbox_stored(ids uuid[])
RETURNS TABLE (message_id uuid, fingerprint bytea, topic text, key text, headers jsonb)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT m.message_id, sha256(
        int8send(length(part.kind)::bigint) || part.kind
        || int8send(length(part.content_type)::bigint) || part.content_type
        || int8send(length(m.payload)::bigint) || m.payload),
        m.topic, m.key,
        (SELECT jsonb_object_agg(h.key, encode(sha256(
                int8send(length(header.name)::bigint) || header.name
                || int8send(0)
                || int8send(length(header.value)::bigint) || header.value), 'hex'))
            FROM jsonb_each_text(m.headers) AS h
            CROSS JOIN LATERAL (
                SELECT convert_to(h.key, 'UTF8') AS name, convert_to(h.value, 'UTF8') AS value OFFSET 0) AS header)
    FROM %home%.outbox_message AS m
    CROSS JOIN LATERAL (
        SELECT convert_to(coalesce(m.kind, m.topic), 'UTF8') AS kind,
            convert_to(m.content_type, 'UTF8') AS content_type OFFSET 0) AS part
    WHERE m.message_id = ANY(ids)
$$;
REVOKE ALL ON FUNCTION {schema}outbox_stored(uuid[]) FROM PUBLIC;
COMMENT ON FUNCTION {schema}outbox_stored(uuid[]) IS
    'what is stored under message ids, with digests of contents and headers: tells a duplicate from an id that is used again';


-- Nodes -------------------------------------------------------------------------------------------

-- Numbers for nodes that make ids themselves, leased by this database's clock. A producer takes,
-- renews and releases one through functions that run with the owner's rights: it cannot set an
-- epoch back, which would make two equal ids.
CREATE TABLE {schema}outbox_node (
    number      integer     NOT NULL,
    epoch       bigint      NOT NULL,
    -- Null while the number is free.
    holder      text,
    lease_until timestamptz,
    taken_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT outbox_node_pkey PRIMARY KEY (number),
    -- What an id has room for.
    CONSTRAINT outbox_node_number_has_16_bits CHECK (number BETWEEN 0 AND 65535),
    CONSTRAINT outbox_node_epoch_has_32_bits CHECK (epoch BETWEEN 1 AND 4294967295),
    CONSTRAINT outbox_node_holder_has_1_to_255_bytes CHECK (octet_length(holder) BETWEEN 1 AND 255),
    CONSTRAINT outbox_node_holder_has_a_lease CHECK ((holder IS NULL) = (lease_until IS NULL))
-- Renewed every few seconds: room for heap-only updates.
) WITH (fillfactor = 50);
COMMENT ON TABLE {schema}outbox_node IS
    'numbers of nodes that make ids; a row is never removed, because its epoch must not begin again';
COMMENT ON COLUMN {schema}outbox_node.epoch IS
    'the fencing token, a part of every id: a later holder of the number has a larger one';
COMMENT ON INDEX {schema}outbox_node_pkey IS 'takes the lowest free number; renews and releases one';

-- Skips a number whose row another session is changing, so no taker waits for another one. A new
-- number that two want goes to one of them, and the other one searches again.
CREATE FUNCTION {schema}outbox_take_node(by_holder text, lease interval)
RETURNS TABLE (number integer, epoch bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF lease IS NULL OR lease NOT BETWEEN interval '1 second' AND interval '1 day' THEN
        RAISE EXCEPTION 'a number cannot be leased for %', lease
            USING ERRCODE = 'invalid_parameter_value', HINT = 'A lease lasts 1 second to 1 day.';
    ELSIF by_holder IS NULL THEN
        RAISE EXCEPTION 'a number needs a holder' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    LOOP
        RETURN QUERY
            UPDATE %home%.outbox_node AS n
            SET epoch = n.epoch + 1, holder = by_holder, lease_until = clock_timestamp() + lease,
                taken_at = clock_timestamp()
            WHERE n.number = (
                SELECT f.number FROM %home%.outbox_node AS f
                WHERE (f.lease_until IS NULL OR f.lease_until <= clock_timestamp()) AND f.epoch < 4294967295
                ORDER BY f.number LIMIT 1 FOR UPDATE SKIP LOCKED)
            RETURNING n.number, n.epoch;
        IF FOUND THEN
            RETURN;
        END IF;
        RETURN QUERY
            INSERT INTO %home%.outbox_node AS n (number, epoch, holder, lease_until)
            SELECT next.number, 1, by_holder, clock_timestamp() + lease
            FROM (SELECT coalesce(max(m.number) + 1, 0) AS number FROM %home%.outbox_node AS m) AS next
            WHERE next.number <= 65535
            ON CONFLICT DO NOTHING
            RETURNING n.number, n.epoch;
        IF FOUND OR EXISTS (SELECT FROM %home%.outbox_node AS m WHERE m.number = 65535) THEN
            RETURN;
        END IF;
    END LOOP;
END
$$;
REVOKE ALL ON FUNCTION {schema}outbox_take_node(text, interval) FROM PUBLIC;
COMMENT ON FUNCTION {schema}outbox_take_node(text, interval) IS
    'leases the lowest free number, with a larger epoch than any holder before; no row when all are held';

-- Also succeeds after the lease has ended, as long as the number was not taken since. The holder
-- counts as well as the epoch: a standby that lagged gives out an epoch for the second time.
CREATE FUNCTION {schema}outbox_renew_node(of_number integer, of_epoch bigint, by_holder text, lease interval)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF lease IS NULL OR lease NOT BETWEEN interval '1 second' AND interval '1 day' THEN
        RAISE EXCEPTION 'a number cannot be leased for %', lease
            USING ERRCODE = 'invalid_parameter_value', HINT = 'A lease lasts 1 second to 1 day.';
    END IF;
    UPDATE %home%.outbox_node AS n SET lease_until = clock_timestamp() + lease
    WHERE n.number = of_number AND n.epoch = of_epoch AND n.holder = by_holder;
    RETURN FOUND;
END
$$;
REVOKE ALL ON FUNCTION {schema}outbox_renew_node(integer, bigint, text, interval) FROM PUBLIC;
COMMENT ON FUNCTION {schema}outbox_renew_node(integer, bigint, text, interval) IS
    'makes a lease last this long from now on; false when another holder has the number';

CREATE FUNCTION {schema}outbox_release_node(of_number integer, of_epoch bigint, by_holder text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE %home%.outbox_node AS n SET holder = NULL, lease_until = NULL
    WHERE n.number = of_number AND n.epoch = of_epoch AND n.holder = by_holder;
    RETURN FOUND;
END
$$;
REVOKE ALL ON FUNCTION {schema}outbox_release_node(integer, bigint, text) FROM PUBLIC;
COMMENT ON FUNCTION {schema}outbox_release_node(integer, bigint, text) IS 'releases a number';


-- Relays ------------------------------------------------------------------------------------------

-- The lease and the cursor of each relay.
CREATE TABLE {schema}outbox_relay (
    relay         text COLLATE "C" NOT NULL,
    -- The log that the relay reads. There is one, 0. It is in every key of this section so that a
    -- relay can read many logs later without new keys.
    shard         smallint    NOT NULL DEFAULT 0,
    epoch         bigint      NOT NULL,
    -- Null while the lease is free.
    holder        text,
    taken_from    text,
    lease_until   timestamptz,
    -- JSON, written and read by the relay: up to where everything is confirmed or in
    -- outbox_exception. Its `base` is floor@snapshot@history. Behind it lies what is visible in the
    -- snapshot, and what has an id up to the floor unless its transaction was in flight.
    cursor        text        NOT NULL,
    checkpoint_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_seconds double precision,
    CONSTRAINT outbox_relay_pkey PRIMARY KEY (relay, shard),
    CONSTRAINT outbox_relay_holder_has_a_lease CHECK ((holder IS NULL) = (lease_until IS NULL))
-- Updated several times a second: room for heap-only updates while a snapshot is open.
) WITH (fillfactor = 10);
COMMENT ON COLUMN {schema}outbox_relay.epoch IS 'the fencing token: a later holder has a larger one';
COMMENT ON COLUMN {schema}outbox_relay.taken_from IS
    'the holder whose expired lease the present holder took over';
COMMENT ON COLUMN {schema}outbox_relay.lease_seconds IS
    'the length that the holder asked for: a lease that ends later than this from now was written by a clock that was ahead';
COMMENT ON INDEX {schema}outbox_relay_pkey IS 'lease, renewal and checkpoint of one relay';

CREATE TABLE {schema}outbox_exception (
    relay      text COLLATE "C" NOT NULL,
    shard      smallint    NOT NULL DEFAULT 0,
    id         bigint      NOT NULL,
    message_id uuid        NOT NULL,
    topic      text        NOT NULL,
    key        text,
    state      text        NOT NULL,
    attempts   integer     NOT NULL DEFAULT 0,
    -- When the entry is due: to be published, to be tried again, or, once discarded, to be removed.
    due_at     timestamptz,
    -- The party at fault in the last failure, and its text.
    fault      text,
    error      text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    earlier_errors jsonb,
    CONSTRAINT outbox_exception_pkey PRIMARY KEY (relay, shard, id),
    CONSTRAINT outbox_exception_state_is_known
        CHECK (state IN ('scheduled', 'retrying', 'held', 'dead', 'discarded')),
    CONSTRAINT outbox_exception_due_state_has_a_time
        CHECK (state NOT IN ('scheduled', 'retrying', 'discarded') OR due_at IS NOT NULL),
    CONSTRAINT outbox_exception_fault_is_known CHECK (fault IN ('broker', 'message', 'operator')),
    CONSTRAINT outbox_exception_attempts_are_not_negative CHECK (attempts >= 0)
);
COMMENT ON TABLE {schema}outbox_exception IS
    'the only entries with a row beside the log: those that did not simply leave';
COMMENT ON COLUMN {schema}outbox_exception.earlier_errors IS
    'what error said before, up to nine texts of 500 characters, oldest first: attempts, at (microseconds since 1970), error; null until the error changes';
COMMENT ON INDEX {schema}outbox_exception_pkey IS
    'checkpoint, requeue, discard and edit of one entry; lists by id';

-- Two indexes, so that what is scheduled or discarded is found at once beside any number of retries.
CREATE INDEX outbox_exception_due_idx ON {schema}outbox_exception (relay, shard, due_at, id)
    WHERE state IN ('scheduled', 'discarded');
COMMENT ON INDEX {schema}outbox_exception_due_idx IS
    'what is scheduled for now, what was discarded, and when the next one is due';

CREATE INDEX outbox_exception_retry_idx ON {schema}outbox_exception (relay, shard, due_at, id)
    WHERE state = 'retrying';
COMMENT ON INDEX {schema}outbox_exception_retry_idx IS 'what is retried now, and when the next one is due';

-- A queue holds the entries of a key, whatever their topics, or those of a topic without a key.
CREATE INDEX outbox_exception_queue_idx ON {schema}outbox_exception
    (relay, shard, (coalesce('k' || key, 't' || topic) COLLATE "C"), id) WHERE state = 'held';
COMMENT ON INDEX {schema}outbox_exception_queue_idx IS
    'the held entries of a key, or of a topic without a key, in the order of ids; which queues there are';

CREATE INDEX outbox_exception_stuck_idx ON {schema}outbox_exception (relay, shard, id)
    WHERE state IN ('retrying', 'dead');
COMMENT ON INDEX {schema}outbox_exception_stuck_idx IS
    'what keys wait for, when a relay takes over; lists dead entries for operators';

CREATE TABLE {schema}outbox_parked (
    relay        text COLLATE "C" NOT NULL,
    shard        smallint NOT NULL DEFAULT 0,
    id           bigint   NOT NULL,
    kind         text,
    content_type text     NOT NULL,
    headers      jsonb,
    traceparent  text,
    tracestate   text,
    payload      bytea,
    enqueued_at  timestamptz NOT NULL,
    edited_at    timestamptz,
    CONSTRAINT outbox_parked_pkey PRIMARY KEY (relay, shard, id),
    CONSTRAINT outbox_parked_headers_are_an_object CHECK (jsonb_typeof(headers) = 'object')
);
COMMENT ON TABLE {schema}outbox_parked IS
    'the content of each row of outbox_exception, copied when it was parked, so that its segment can be emptied';
COMMENT ON COLUMN {schema}outbox_parked.payload IS
    'null: too large to be copied with the checkpoint; content and headers are those of the row of the log';
COMMENT ON COLUMN {schema}outbox_parked.edited_at IS
    'when an operator replaced the content; null as long as it is the log''s';
COMMENT ON INDEX {schema}outbox_parked_pkey IS 'the content of an entry that is due, free again or looked at';

CREATE INDEX outbox_parked_uncopied_idx ON {schema}outbox_parked (relay, shard, id) WHERE payload IS NULL;
COMMENT ON INDEX {schema}outbox_parked_uncopied_idx IS
    'which segments have the only content of a parked entry';

CREATE TABLE {schema}outbox_rebased (
    relay      text COLLATE "C" NOT NULL,
    shard      smallint NOT NULL DEFAULT 0,
    id         bigint   NOT NULL,
    message_id uuid     NOT NULL,
    CONSTRAINT outbox_rebased_pkey PRIMARY KEY (relay, shard, id, message_id),
    -- A forgotten relay leaves nothing behind.
    CONSTRAINT outbox_rebased_relay_fkey FOREIGN KEY (relay, shard)
        REFERENCES {schema}outbox_relay ON DELETE CASCADE
);
COMMENT ON TABLE {schema}outbox_rebased IS
    'entries that lie ahead of a rebased cursor again although they were parked: the relay leaves them out';
COMMENT ON INDEX {schema}outbox_rebased_pkey IS 'which entries of a batch are left out';

CREATE INDEX outbox_rebased_message_idx ON {schema}outbox_rebased (relay, shard, message_id);
COMMENT ON INDEX {schema}outbox_rebased_message_idx IS
    'which messages of a batch are left out, whatever their ids are now';


-- Operators ---------------------------------------------------------------------------------------

-- Operators pause a pipeline, one of its topics, or an ordering key. A running relay looks here
-- twice a second.
CREATE TABLE {schema}outbox_pause (
    relay     text COLLATE "C" NOT NULL,
    kind      text COLLATE "C" NOT NULL,
    -- The topic or key; empty for the whole pipeline.
    name      text COLLATE "C" NOT NULL,
    actor     text        NOT NULL,
    reason    text        NOT NULL,
    paused_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT outbox_pause_pkey PRIMARY KEY (relay, kind, name),
    CONSTRAINT outbox_pause_kind_is_known CHECK (kind IN ('pipeline', 'topic', 'key')),
    CONSTRAINT outbox_pause_names_a_topic_or_key CHECK ((kind = 'pipeline') = (name = '')),
    CONSTRAINT outbox_pause_has_a_reason CHECK (reason <> '')
);
COMMENT ON TABLE {schema}outbox_pause IS
    'what a relay does not publish until an operator resumes it, and why';
COMMENT ON INDEX {schema}outbox_pause_pkey IS 'finds what a relay has to hold';

CREATE TABLE {schema}outbox_audit (
    seq           bigint      GENERATED ALWAYS AS IDENTITY,
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor         text        NOT NULL,
    note          text        NOT NULL,
    selection     text,
    action        text        NOT NULL,
    relay         text COLLATE "C" NOT NULL,
    id            bigint      NOT NULL,
    message_id    uuid        NOT NULL,
    digest_before text,
    digest_after  text,
    payload_before bytea,
    headers_before jsonb,
    payload_after  bytea,
    headers_after  jsonb,
    -- The party at fault, and the text of the failure.
    fault         text,
    error         text,
    decision      uuid,
    CONSTRAINT outbox_audit_pkey PRIMARY KEY (seq),
    CONSTRAINT outbox_audit_action_is_known CHECK (action IN ('requeue', 'discard', 'edit'))
);
COMMENT ON TABLE {schema}outbox_audit IS
    'who decided what about a dead entry; the digests are SHA-256 of payload and headers';
COMMENT ON COLUMN {schema}outbox_audit.payload_before IS
    'what an edit replaced; like the three columns behind it null for other decisions, and when larger than 64 KiB';
COMMENT ON COLUMN {schema}outbox_audit.selection IS
    'the filter by which the entry was chosen, and how many it chose; null when there was no filter';
COMMENT ON COLUMN {schema}outbox_audit.error IS
    'why the entry was dead when the decision was made; a discarded one leaves no other trace of it';
COMMENT ON COLUMN {schema}outbox_audit.decision IS
    'the same in the rows of all messages of one confirmation; null when each was decided about by itself';
COMMENT ON INDEX {schema}outbox_audit_pkey IS 'lists decisions in their order';

CREATE INDEX outbox_audit_message_idx ON {schema}outbox_audit (relay, message_id, seq);
COMMENT ON INDEX {schema}outbox_audit_message_idx IS
    'the decisions about a message: for each row that a replay, a tail, a verification or a list looks at';

CREATE INDEX outbox_audit_decision_idx ON {schema}outbox_audit (relay, decision, seq) WHERE decision IS NOT NULL;
COMMENT ON INDEX {schema}outbox_audit_decision_idx IS
    'the messages of one decision, for its result; a confirmation that is sent twice finds the first one';

-- Its collation is one that only the list names, so that no search for the decisions about a message
-- walks this index, whatever the planner assumes about the table.
CREATE INDEX outbox_audit_relay_idx ON {schema}outbox_audit (relay COLLATE "POSIX", seq);
COMMENT ON INDEX {schema}outbox_audit_relay_idx IS
    'lists the decisions of one relay, however many the others have';

CREATE TABLE {schema}outbox_operation (
    seq       bigint      GENERATED ALWAYS AS IDENTITY,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor     text        NOT NULL,
    note      text        NOT NULL,
    -- What was paused or resumed.
    selection text        NOT NULL,
    action    text        NOT NULL,
    relay     text        NOT NULL,
    CONSTRAINT outbox_operation_pkey PRIMARY KEY (seq)
);
COMMENT ON TABLE {schema}outbox_operation IS
    'who paused or resumed what, and why; decisions about dead entries are in outbox_audit';
COMMENT ON INDEX {schema}outbox_operation_pkey IS 'lists operations in their order';

CREATE INDEX outbox_operation_relay_idx ON {schema}outbox_operation (relay, seq);
COMMENT ON INDEX {schema}outbox_operation_relay_idx IS
    'lists the operations on one relay, however many there are on others';

CREATE INDEX outbox_operation_action_idx ON {schema}outbox_operation (relay, action, seq);
COMMENT ON INDEX {schema}outbox_operation_action_idx IS
    'which sessions of the page were ended, however many other operations there are';


-- Histories ---------------------------------------------------------------------------------------

-- Transaction ids and sequences belong to one cluster and one course of its history. These tables
-- tell a relay whether its cursor still does, and these functions repair it when it does not.

CREATE TABLE {schema}outbox_identity (
    singleton         boolean     NOT NULL DEFAULT true,
    system_identifier text        NOT NULL,
    recorded_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT outbox_identity_pkey PRIMARY KEY (singleton),
    CONSTRAINT outbox_identity_has_one_row CHECK (singleton)
);
COMMENT ON TABLE {schema}outbox_identity IS
    'the cluster whose transaction ids the rows carry; another one after a restore means that cursors are rebased';
INSERT INTO {schema}outbox_identity (system_identifier)
SELECT system_identifier::text FROM pg_control_system();

-- PostgreSQL itself empties an unlogged table after a crash, after the promotion of a standby and
-- after a restore of files. Just then it may hand out again transaction ids and sequence numbers
-- that were not stored. A row that is still there proves that it did not. Must stay UNLOGGED.
CREATE UNLOGGED TABLE {schema}outbox_server_run (
    singleton  boolean     NOT NULL DEFAULT true,
    run_id     uuid        NOT NULL DEFAULT gen_random_uuid(),
    -- Start of the server. Another one means that the row came with a dump.
    started_at timestamptz NOT NULL DEFAULT pg_postmaster_start_time(),
    CONSTRAINT outbox_server_run_pkey PRIMARY KEY (singleton),
    CONSTRAINT outbox_server_run_has_one_row CHECK (singleton)
);
COMMENT ON TABLE {schema}outbox_server_run IS
    'unlogged: empty after each crash, promotion and restore, so that what a relay remembers never outlives the server';

-- The first eight digits of a WAL file's name are the timeline that is being written; the control
-- file has it only after a checkpoint. Clouds refuse these functions (Aurora: "wal_level must be
-- set to 'logical'"). Such a server reveals no timeline, which is 0 here.
CREATE FUNCTION {schema}outbox_timeline() RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
EXCEPTION
    WHEN object_not_in_prerequisite_state OR undefined_function
        OR insufficient_privilege OR feature_not_supported
    THEN
        RETURN 0;
END
$$;
COMMENT ON FUNCTION {schema}outbox_timeline() IS
    'the timeline that the server writes; 0 where it is not revealed: then the promotion of a standby goes unnoticed';

-- The lock keeps checkpoints out, but not those who only read cursors, as a dump does for hours.
CREATE FUNCTION {schema}outbox_rebase_rows() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    rewritten bigint;
BEGIN
    LOCK TABLE %home%.outbox_relay IN EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM %home%.outbox_identity AS i, pg_control_system() AS c
               WHERE i.system_identifier = c.system_identifier::text)
        AND coalesce((SELECT m.xid FROM %home%.outbox_message AS m ORDER BY m.xid DESC LIMIT 1)
                     < pg_snapshot_xmax(pg_current_snapshot()), true)
    THEN
        RAISE EXCEPTION 'this cluster has written the log: there is nothing to rebase'
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    UPDATE %home%.outbox_message SET xid = '3' WHERE xid >= pg_snapshot_xmin(pg_current_snapshot());
    GET DIAGNOSTICS rewritten = ROW_COUNT;
    INSERT INTO %home%.outbox_identity (system_identifier)
    SELECT c.system_identifier::text FROM pg_control_system() AS c
    ON CONFLICT (singleton) DO UPDATE
    SET system_identifier = EXCLUDED.system_identifier, recorded_at = clock_timestamp();
    RETURN rewritten;
END
$$;
REVOKE ALL ON FUNCTION {schema}outbox_rebase_rows() FROM PUBLIC;
COMMENT ON FUNCTION {schema}outbox_rebase_rows() IS
    'after a restore into another cluster: rows of unknown transactions become visible in every mark; refused otherwise';

-- Only ever forwards. The lock is granted when no open transaction has taken an id, and no id is
-- taken meanwhile. Producers queue behind whoever waits for it, so nobody waits for long: a long
-- transaction makes this call fail.
--
-- The sequence hands out the ids of rows. Numbers that relays have written are believed up to 2^40
-- ahead of it, more than any log has lost: a sequence never goes back, and at its end nobody can
-- enqueue any more.
CREATE FUNCTION {schema}outbox_advance_sequence() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '25ms'
AS $$
DECLARE
    position bigint := coalesce(pg_sequence_last_value('%home%.outbox_message_id_seq'), 0);
    known    record;
BEGIN
    LOCK TABLE ONLY %home%.outbox_message IN SHARE ROW EXCLUSIVE MODE;
    position := greatest(position, (SELECT m.id FROM %home%.outbox_message AS m ORDER BY m.id DESC LIMIT 1));
    SELECT n.relay, n.id INTO known FROM (
        (SELECT e.relay, e.id FROM %home%.outbox_exception AS e ORDER BY e.id DESC LIMIT 1)
        UNION ALL
        SELECT r.relay, greatest(split_part(r.cursor::jsonb ->> 'base', '@', 1)::bigint,
            split_part(r.cursor::jsonb -> 'progress' ->> 'head', '@', 1)::bigint,
            (r.cursor::jsonb -> 'progress' ->> 'after')::bigint)
        FROM %home%.outbox_relay AS r) AS n
    ORDER BY n.id DESC NULLS LAST LIMIT 1;
    IF known.id > position + 1099511627776 THEN
        RAISE EXCEPTION 'the relay % says that the id % was given out, and the last one is %, so it is not believed: '
            'mend its cursor, or stop it and forget it', known.relay, known.id, position
            USING ERRCODE = 'data_exception';
    END IF;
    position := greatest(position, known.id);
    IF position > coalesce(pg_sequence_last_value('%home%.outbox_message_id_seq'), 0) THEN
        PERFORM setval('%home%.outbox_message_id_seq', position);
    END IF;
    RETURN pg_sequence_last_value('%home%.outbox_message_id_seq');
END
$$;
REVOKE ALL ON FUNCTION {schema}outbox_advance_sequence() FROM PUBLIC;
COMMENT ON FUNCTION {schema}outbox_advance_sequence() IS
    'after a sequence went back: sets it above every id that rows, exceptions and cursors know; never backwards';

-- After a sequence was set back, two rows in different segments can have one id. A relay that has
-- not read either cannot tell them apart. A row can also have the id of a parked message (ADR 33).
--
-- Looks only at rows that are invisible in the mark. Where such a row has the id of an earlier one,
-- or of a parked message, it moves behind all other rows. Of the keys of such rows so does
-- everything that was written since the first of them, in the order that the ids had. They stay rows
-- of their transactions. What is parked of them moves along. Does nothing in any other case.
CREATE FUNCTION {schema}outbox_renumber_rows(snapshot pg_snapshot, floor bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moved      record;
    fresh      bigint;
    renumbered bigint := 0;
BEGIN
    LOCK TABLE %home%.outbox_relay IN EXCLUSIVE MODE;
    -- A snapshot that sees nothing says nothing about the rows up to its floor. This first look
    -- takes no lock that keeps producers out: a relay will meet a row that commits now.
    IF NOT EXISTS (
            SELECT FROM %home%.outbox_exception AS x CROSS JOIN LATERAL (
                SELECT FROM %home%.outbox_message AS m
                WHERE m.id >= x.id AND m.id <= x.id AND m.message_id <> x.message_id
                    AND m.xid >= pg_snapshot_xmin($1) AND NOT pg_visible_in_snapshot(m.xid, $1)
                    AND (m.id > $2 OR pg_snapshot_xmax($1) > '1')
                ORDER BY m.id LIMIT 1) AS other)
        AND NOT EXISTS (
            SELECT FROM %home%.outbox_message AS m
            WHERE m.xid >= pg_snapshot_xmin($1) AND NOT pg_visible_in_snapshot(m.xid, $1)
                AND (m.id > $2 OR pg_snapshot_xmax($1) > '1')
            GROUP BY m.id HAVING count(*) > 1)
    THEN
        RETURN 0;
    END IF;
    PERFORM %home%.outbox_advance_sequence();
    FOR moved IN
        WITH unseen AS (
            SELECT m.tableoid AS segment, m.ctid AS place, m.id, m.message_id, m.key, m.enqueued_at,
                row_number() OVER (PARTITION BY m.id ORDER BY m.enqueued_at, m.message_id) AS nth
            FROM %home%.outbox_message AS m
            WHERE m.xid >= pg_snapshot_xmin($1) AND NOT pg_visible_in_snapshot(m.xid, $1)
                AND (m.id > $2 OR pg_snapshot_xmax($1) > '1')),
        judged AS (
            -- Where the row of the parked message is invisible as well, `nth` decides between the two.
            SELECT u.*, u.nth > 1 OR EXISTS (
                SELECT FROM %home%.outbox_relay AS r CROSS JOIN LATERAL (
                    SELECT x.id, x.message_id FROM %home%.outbox_exception AS x
                    WHERE x.relay = r.relay AND x.shard = r.shard AND x.id = u.id
                        AND x.message_id <> u.message_id LIMIT 1) AS x
                WHERE NOT EXISTS (
                    SELECT FROM %home%.outbox_message AS m
                    WHERE m.id >= x.id AND m.id <= x.id AND m.message_id = x.message_id
                        AND m.xid >= pg_snapshot_xmin($1) AND NOT pg_visible_in_snapshot(m.xid, $1)
                        AND (m.id > $2 OR pg_snapshot_xmax($1) > '1') OFFSET 0)) AS is_later
            FROM unseen AS u)
        SELECT u.segment, u.place, u.id, u.message_id, e.id IS NOT NULL AS is_parked
        FROM judged AS u
        LEFT JOIN (SELECT DISTINCT x.id, x.message_id FROM %home%.outbox_exception AS x) AS e
            ON e.id = u.id AND e.message_id = u.message_id
        WHERE u.is_later
            OR u.key IN (SELECT j.key FROM judged AS j WHERE j.is_later)
                AND u.enqueued_at >= (SELECT min(j.enqueued_at) FROM judged AS j WHERE j.is_later)
        ORDER BY u.id, u.enqueued_at, u.message_id
    LOOP
        UPDATE %home%.outbox_message AS m SET id = DEFAULT
        WHERE m.tableoid = moved.segment AND m.ctid = moved.place RETURNING m.id INTO STRICT fresh;
        IF moved.is_parked THEN
            UPDATE %home%.outbox_parked AS p SET id = fresh
            FROM %home%.outbox_relay AS r, %home%.outbox_exception AS e
            WHERE e.relay = r.relay AND e.shard = r.shard
                AND e.id = moved.id AND e.message_id = moved.message_id
                AND p.relay = e.relay AND p.shard = e.shard AND p.id = e.id;
            UPDATE %home%.outbox_exception AS e SET id = fresh FROM %home%.outbox_relay AS r
            WHERE e.relay = r.relay AND e.shard = r.shard
                AND e.id = moved.id AND e.message_id = moved.message_id;
            -- Retention keeps a decision as long as its message is parked.
            UPDATE %home%.outbox_audit AS a SET id = fresh FROM %home%.outbox_relay AS r
            WHERE a.relay = r.relay AND a.message_id = moved.message_id AND a.id = moved.id;
        END IF;
        renumbered := renumbered + 1;
    END LOOP;
    -- A reader with a mark from before would skip the rows that have moved. Readers accept no mark
    -- of another run.
    UPDATE %home%.outbox_server_run SET run_id = gen_random_uuid();
    RETURN renumbered;
END
$$;
REVOKE ALL ON FUNCTION {schema}outbox_renumber_rows(pg_snapshot, bigint) FROM PUBLIC;
COMMENT ON FUNCTION {schema}outbox_renumber_rows(pg_snapshot, bigint) IS
    'after a sequence went back: an unread row with the id of an earlier row or of a parked message gets a new id; does nothing otherwise';


-- Retention ---------------------------------------------------------------------------------------

CREATE TABLE {schema}outbox_retention (
    singleton       boolean NOT NULL DEFAULT true,
    expired_through uuid,
    expired_at      timestamptz,
    decisions_after bigint NOT NULL DEFAULT 0,
    CONSTRAINT outbox_retention_pkey PRIMARY KEY (singleton),
    CONSTRAINT outbox_retention_has_one_row CHECK (singleton)
);
COMMENT ON TABLE {schema}outbox_retention IS
    'the largest message id that retention has removed: of smaller ones the log knows nothing';
COMMENT ON COLUMN {schema}outbox_retention.decisions_after IS
    'retention has looked at the decisions up to this one in its present round; 0 at the beginning of a round';
INSERT INTO {schema}outbox_retention DEFAULT VALUES;

-- Reasons that keep a segment, in the order of the checks: empty, young, restored, relay (with its
-- name as the culprit), parked (with the relay's name), unread.
--
-- STABLE, so that it sees cursors and parked entries in one snapshot: a checkpoint writes both at
-- once, and between two snapshots a row could be passed and not yet parked.
--
-- A cursor of another history has passed nothing: after a restore or a reset, and before its relay
-- takes the lease again, it can seem to have passed rows that nobody has read.
CREATE FUNCTION {schema}outbox_segment(number integer, keep interval)
RETURNS TABLE (newest_id bigint, newest_at timestamptz, oldest_at timestamptz, bytes bigint,
    reason text, culprit text)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
    present        timestamptz := clock_timestamp();
    -- The largest ids of the present moment, and of the last one that is not kept.
    present_id     uuid := (lpad(to_hex((extract(epoch FROM present) * 1000)::bigint), 12, '0')
        || '7fffbfffffffffffffff')::uuid;
    old_id         uuid := (
        lpad(to_hex(greatest(extract(epoch FROM present - keep) * 1000, 0)::bigint), 12, '0')
        || '7fffbfffffffffffffff')::uuid;
    newest_message uuid;
BEGIN
    bytes := pg_total_relation_size(format('%home%.outbox_message_%s', number)::regclass);
    SELECT m.id, m.enqueued_at, m.message_id INTO newest_id, newest_at, newest_message
    FROM %home%.outbox_message AS m
    WHERE ((get_byte(uuid_send(m.message_id), 2) >> 2) & 7) = number ORDER BY m.id DESC LIMIT 1;
    SELECT m.enqueued_at INTO oldest_at FROM %home%.outbox_message AS m
    WHERE ((get_byte(uuid_send(m.message_id), 2) >> 2) & 7) = number ORDER BY m.id LIMIT 1;
    -- Neither time of a row is certain: a producer, or a clock that was wrong, can have given it an
    -- earlier one, and a row of another outbox has both of its own. So one id of the time that is
    -- kept makes the segment young, and so does the enqueue time of its newest row. If both times of
    -- that row are ahead of the clock, its age is that of the next row with a possible time.
    reason := CASE
        WHEN newest_id IS NULL THEN 'empty'
        WHEN EXISTS (
            SELECT FROM %home%.outbox_message AS m
            WHERE ((get_byte(uuid_send(m.message_id), 2) >> 2) & 7) = number
                AND m.message_id > old_id AND m.message_id <= present_id)
        THEN 'young'
        WHEN newest_at <= present THEN CASE WHEN newest_at > present - keep THEN 'young' END
        WHEN newest_message > old_id
            AND NOT coalesce((
                SELECT later.enqueued_at <= present - keep FROM (
                    SELECT m.id, m.enqueued_at FROM %home%.outbox_message AS m
                    WHERE m.id > newest_id ORDER BY m.id LIMIT 1000) AS later
                WHERE later.enqueued_at <= present ORDER BY later.id LIMIT 1), false)
        THEN 'young' END;
    IF reason IS NOT NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;

    -- Of another cluster, and not rebased yet: its transaction ids mean nothing here.
    IF NOT EXISTS (SELECT FROM %home%.outbox_identity AS i, pg_control_system() AS c
                   WHERE i.system_identifier = c.system_identifier::text)
        OR coalesce((SELECT m.xid FROM %home%.outbox_message AS m ORDER BY m.xid DESC LIMIT 1)
                    >= pg_snapshot_xmax(pg_current_snapshot()), false)
    THEN
        reason := 'restored';
        RETURN NEXT;
        RETURN;
    END IF;

    SELECT 'relay', r.relay INTO reason, culprit
    FROM %home%.outbox_relay AS r
    CROSS JOIN LATERAL (SELECT r.cursor::jsonb ->> 'base' AS base OFFSET 0) AS c
    CROSS JOIN LATERAL (
        SELECT split_part(c.base, '@', 1)::bigint AS floor,
            split_part(c.base, '@', 2)::pg_snapshot AS snapshot,
            split_part(split_part(c.base, '@', 3), '/', 1) AS system_identifier
        OFFSET 0) AS mark
    -- The first three: what its relay finds when it takes its lease, and repairs.
    WHERE mark.system_identifier NOT IN ('', (SELECT s.system_identifier::text FROM pg_control_system() AS s))
        OR pg_snapshot_xmax(mark.snapshot) > pg_snapshot_xmax(pg_current_snapshot())
        OR mark.floor > coalesce(pg_sequence_last_value('%home%.outbox_message_id_seq'), 0)
        OR EXISTS (
            SELECT FROM (
                SELECT m.id FROM %home%.outbox_message AS m
                WHERE ((get_byte(uuid_send(m.message_id), 2) >> 2) & 7) = number AND m.id > mark.floor
                    AND NOT pg_visible_in_snapshot(m.xid, mark.snapshot)
                ORDER BY m.id LIMIT 1) AS ahead)
        OR EXISTS (
            SELECT FROM pg_snapshot_xip(mark.snapshot) AS flight(xid) CROSS JOIN LATERAL (
                SELECT m.id FROM %home%.outbox_message AS m
                WHERE ((get_byte(uuid_send(m.message_id), 2) >> 2) & 7) = number
                    AND (m.xid, m.id) > (flight.xid, 0::bigint) AND (m.xid, m.id) <= (flight.xid, mark.floor)
                ORDER BY m.xid, m.id LIMIT 1) AS late)
        -- An id that the sequence has handed out again: the row is invisible in a snapshot that sees
        -- others.
        OR pg_snapshot_xmax(mark.snapshot) > '1'::xid8 AND EXISTS (
            SELECT FROM (
                SELECT m.id FROM %home%.outbox_message AS m
                WHERE ((get_byte(uuid_send(m.message_id), 2) >> 2) & 7) = number
                    AND (m.xid, m.id) > (pg_snapshot_xmax(mark.snapshot), 0::bigint)
                ORDER BY m.xid, m.id LIMIT 10000) AS young
            WHERE young.id <= mark.floor)
    ORDER BY mark.floor, r.relay LIMIT 1;

    -- A parked entry without a copy has its content here only.
    IF reason IS NULL THEN
        SELECT 'parked', p.relay INTO reason, culprit
        FROM %home%.outbox_parked AS p CROSS JOIN LATERAL (
            SELECT FROM %home%.outbox_exception AS e
            WHERE e.relay = p.relay AND e.shard = p.shard AND e.id = p.id
                AND ((get_byte(uuid_send(e.message_id), 2) >> 2) & 7) = number LIMIT 1) AS e
        WHERE p.payload IS NULL LIMIT 1;
    END IF;

    -- In a log without any relay nothing is decided.
    IF NOT EXISTS (SELECT FROM %home%.outbox_relay) THEN
        reason := 'unread';
    END IF;
    RETURN NEXT;
END
$$;
REVOKE ALL ON FUNCTION {schema}outbox_segment(integer, interval) FROM PUBLIC;
COMMENT ON FUNCTION {schema}outbox_segment(integer, interval) IS
    'what a segment holds, and why it cannot be emptied yet: null when it can';

-- The lock proves that no open transaction has written to the segment: each such transaction holds
-- a lock on it until its rows are visible to the next statement, and each statement of this
-- function takes a new snapshot. Only then does it check that all of the segment is settled. A
-- transaction that has an id and no row yet writes into the emptied segment, and relays find its
-- rows by their xid.
--
-- The timeout: the longest wait of a producer that brings an old id, or of a relay that reads.
CREATE FUNCTION {schema}outbox_expire_segment(number integer, keep interval) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '25ms'
SET jit = off
SET enable_seqscan = off
AS $$
DECLARE
    held text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a segment cannot be expired in a transaction that is %',
            current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state',
            HINT = 'It would not see what has committed: use READ COMMITTED.';
    ELSIF number IS NULL OR keep IS NULL OR number NOT BETWEEN 0 AND 7 OR keep < interval '0' THEN
        RAISE EXCEPTION 'segment % cannot be kept for %', number, keep
            USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Segments are 0 to 7, and times are not negative.';
    ELSIF NOT pg_try_advisory_xact_lock(8031439170474173555 # '%home%.outbox_message'::regclass::oid::bigint) THEN
        RETURN 'busy';
    END IF;
    -- Without the lock first: nobody waits while nothing can go.
    SELECT s.reason INTO held FROM %home%.outbox_segment(number, keep) AS s;
    IF held IS NOT NULL THEN
        RETURN held;
    END IF;
    EXECUTE format('LOCK TABLE ONLY %home%.outbox_message_%s IN ACCESS EXCLUSIVE MODE', number);
    SELECT s.reason INTO held FROM %home%.outbox_segment(number, keep) AS s;
    IF held IS NOT NULL THEN
        RETURN held;
    END IF;
    -- An id that is ahead of the clock must not hide ids that are older than it.
    EXECUTE format(
        'UPDATE %home%.outbox_retention AS r
         SET expired_through = least(
             greatest(r.expired_through, (SELECT m.message_id FROM %home%.outbox_message_%s AS m
                 ORDER BY m.message_id DESC LIMIT 1)), $1), expired_at = clock_timestamp()', number)
    USING (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
        || '7fffbfffffffffffffff')::uuid;
    EXECUTE format('TRUNCATE TABLE ONLY %home%.outbox_message_%s', number);
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION {schema}outbox_expire_segment(integer, interval) FROM PUBLIC;
COMMENT ON FUNCTION {schema}outbox_expire_segment(integer, interval) IS
    'empties a segment that every relay has passed and whose youngest row is older; returns why not, or null';

-- A relay's role may not remove cursors. This removes one whose lease is free, and what it parked
-- only when the caller says so: then each call removes the first 10,000 of these, with the outcome
-- `more`, as long as there are that many, and the last call all the rest. So a call is short, and
-- after an interruption the next one continues. Only plans in the order of ids read no more than
-- they remove.
--
-- A lease that ends later than its holder can have asked for (the clock was ahead) does not prove
-- that the holder lives. The caller watches it for its length, and names it by its epoch and end.
CREATE FUNCTION {schema}outbox_forget_relay(
    name text,
    discard_parked boolean,
    over_epoch bigint DEFAULT NULL,
    over_until timestamptz DEFAULT NULL
)
RETURNS TABLE (outcome text, holder text, parked bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    up_to bigint;
BEGIN
    SELECT CASE WHEN r.lease_until > clock_timestamp() AND r.holder <> 'relay forget'
        AND (r.epoch = over_epoch AND r.lease_until = over_until
            AND r.lease_until > clock_timestamp() + make_interval(secs => r.lease_seconds + 1)) IS NOT TRUE
        THEN r.holder END INTO holder
    FROM %home%.outbox_relay AS r WHERE r.relay = name AND r.shard = 0 FOR UPDATE;
    outcome := CASE WHEN NOT FOUND THEN 'unknown' WHEN holder IS NOT NULL THEN 'leading' END;
    IF outcome IS NULL AND discard_parked THEN
        SELECT e.id INTO up_to FROM %home%.outbox_exception AS e
        WHERE e.relay = name AND e.shard = 0 ORDER BY e.id OFFSET 9999 LIMIT 1;
        IF FOUND THEN
            -- No relay begins between two parts: it would go on without what is discarded.
            UPDATE %home%.outbox_relay AS r SET epoch = r.epoch + 1, holder = 'relay forget',
                lease_until = clock_timestamp() + interval '60 seconds', lease_seconds = 60
            WHERE r.relay = name AND r.shard = 0;
            DELETE FROM %home%.outbox_exception AS e WHERE e.relay = name AND e.shard = 0 AND e.id <= up_to;
            GET DIAGNOSTICS parked = ROW_COUNT;
            DELETE FROM %home%.outbox_parked AS p WHERE p.relay = name AND p.shard = 0 AND p.id <= up_to;
            outcome := 'more';
        END IF;
    ELSIF outcome IS NULL THEN
        SELECT count(*) INTO parked FROM %home%.outbox_exception AS e WHERE e.relay = name;
        outcome := CASE WHEN parked > 0 THEN 'parked' END;
    END IF;
    IF outcome IS NULL THEN
        DELETE FROM %home%.outbox_exception AS e WHERE e.relay = name;
        DELETE FROM %home%.outbox_parked AS p WHERE p.relay = name;
        DELETE FROM %home%.outbox_relay AS r WHERE r.relay = name;
        -- The next relay of this name publishes what was discarded, and what was edited as it was
        -- enqueued: these decisions are withdrawn.
        INSERT INTO %home%.outbox_audit (actor, relay, id, message_id, action, note)
        SELECT 'relay forget', name, max(a.id), a.message_id, 'requeue', 'the relay was forgotten'
        FROM %home%.outbox_audit AS a WHERE a.relay = name GROUP BY a.message_id
        HAVING max(a.seq) FILTER (WHERE a.action = 'discard')
                > coalesce(max(a.seq) FILTER (WHERE a.action = 'requeue'), 0)
            OR max(a.seq) FILTER (WHERE a.action = 'edit')
                > coalesce(max(a.seq) FILTER (WHERE a.action = 'requeue' AND a.actor = 'relay forget'), 0);
        -- Its pauses end as well.
        WITH ended AS (DELETE FROM %home%.outbox_pause AS p WHERE p.relay = $1 RETURNING p.kind, p.name)
        INSERT INTO %home%.outbox_operation (actor, relay, action, selection, note)
        SELECT 'relay forget', $1, 'resume', concat_ws(' ', e.kind, nullif(e.name, '')),
            'the relay was forgotten'
        FROM ended AS e ORDER BY e.kind, e.name;
        outcome := 'forgotten';
    END IF;
    RETURN NEXT;
END
$$;
REVOKE ALL ON FUNCTION {schema}outbox_forget_relay(text, boolean, bigint, timestamptz) FROM PUBLIC;
COMMENT ON FUNCTION {schema}outbox_forget_relay(text, boolean, bigint, timestamptz) IS
    'removes the cursor of a relay that nobody leads, so that it holds no history back';

-- A decision stays as long as its message could leave by it: while the log has the row, or a relay
-- has it parked. Each call looks at a number of lines, oldest first, and continues where the last
-- one ended, so a call is short and decisions that stay keep no others. A round ends with lines
-- that are all young, or with the last line. Lines with a time ahead of the clock were not written
-- then, so they are no reason to end. A plan that sorts would read all lines behind that
-- place.
CREATE FUNCTION {schema}outbox_forget_decisions(keep interval, lines integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '25ms'
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    passed     bigint := (SELECT r.decisions_after FROM %home%.outbox_retention AS r);
    seen       record;
    decisions  bigint;
    operations bigint;
BEGIN
    IF keep IS NULL OR lines IS NULL OR keep < interval '30 days' OR lines NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'decisions cannot be kept for %, % at once', keep, lines
            USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Keep them for 30 days or longer, 1 to 10000 at once.';
    END IF;
    SELECT count(*) AS count, max(next.seq) AS last,
        bool_and(next.at BETWEEN clock_timestamp() - keep AND clock_timestamp()) AS are_young
    INTO seen
    FROM (SELECT a.seq, a.at FROM %home%.outbox_audit AS a
        WHERE a.seq > passed ORDER BY a.seq LIMIT lines) AS next;
    DELETE FROM %home%.outbox_audit WHERE ctid = ANY(ARRAY(
        SELECT old.place
        FROM (SELECT a.ctid AS place, a.relay, a.id, a.message_id, a.at FROM %home%.outbox_audit AS a
            WHERE a.seq > passed ORDER BY a.seq LIMIT lines) AS old
        WHERE old.at < clock_timestamp() - keep
            AND NOT EXISTS (SELECT FROM %home%.outbox_message AS m WHERE m.message_id = old.message_id
                AND (get_byte(uuid_send(m.message_id), 2) >> 2) & 7
                    = (get_byte(uuid_send(old.message_id), 2) >> 2) & 7 OFFSET 0)
            AND NOT EXISTS (SELECT FROM %home%.outbox_exception AS e
                WHERE e.relay = old.relay AND e.shard = 0 AND e.id = old.id OFFSET 0)));
    GET DIAGNOSTICS decisions = ROW_COUNT;
    UPDATE %home%.outbox_retention AS r
    SET decisions_after = CASE WHEN seen.count = lines AND NOT seen.are_young THEN seen.last ELSE 0 END
    WHERE r.decisions_after <> CASE WHEN seen.count = lines AND NOT seen.are_young THEN seen.last ELSE 0 END;
    DELETE FROM %home%.outbox_operation WHERE ctid = ANY(ARRAY(
        SELECT old.place
        FROM (SELECT ctid AS place, at FROM %home%.outbox_operation ORDER BY seq LIMIT lines) AS old
        WHERE old.at < clock_timestamp() - keep));
    GET DIAGNOSTICS operations = ROW_COUNT;
    RETURN decisions + operations;
END
$$;
REVOKE ALL ON FUNCTION {schema}outbox_forget_decisions(interval, integer) FROM PUBLIC;
COMMENT ON FUNCTION {schema}outbox_forget_decisions(interval, integer) IS
    'removes the oldest decisions and operations when they are older than this and their messages are gone; 30 days at least';


{home}
