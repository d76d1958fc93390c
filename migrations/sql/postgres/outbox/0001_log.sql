-- The outbox: an append-only log that producers write in their own transactions, and what relays keep beside it.
--
-- Grants: a producer with plain SQL needs INSERT on outbox_message, one with the library SELECT too. A relay needs
-- SELECT on outbox_message, outbox_message_id_seq and outbox_toolkit_migration, UPDATE on outbox_message (only ever
-- used after a restore into another cluster), and SELECT, INSERT, UPDATE, DELETE on the other outbox_ tables.

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
            -- the variant stands already: gen_random_uuid makes version 4 with the same one
            112 | (get_byte(uuid_send(gen_random_uuid()), 6) & 15)),
        'hex')::uuid
$$;

COMMENT ON FUNCTION {schema}outbox_new_message_id() IS
    'a version 7 UUID of the present moment, for producers that bring no message id';

-- A producer in any language writes a row with a plain INSERT in its own transaction:
--   INSERT INTO outbox_message (topic, key, payload) VALUES ('orders', 'order-7', convert_to('...', 'UTF8'));
-- or calls outbox_enqueue / outbox_enqueue_json below, which check more and say what is wrong.
CREATE TABLE {schema}outbox_message (
    -- First, because defaults are evaluated in the order of columns: no transaction gets an id before it has its
    -- xid. The relay's proof that it misses no row rests on this.
    xid          xid8        NOT NULL DEFAULT pg_current_xact_id(),
    -- Always generated: an id chosen by a producer could lie behind the relays. CACHE 1: an id that a session
    -- keeps in reserve would do so too. An identity needs no grant on its sequence.
    id           bigint      GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME {schema}outbox_message_id_seq CACHE 1),
    message_id   uuid        NOT NULL DEFAULT {schema}outbox_new_message_id(),
    topic        text        NOT NULL,
    key          text,
    kind         text,
    content_type text        NOT NULL DEFAULT 'application/json',
    headers      jsonb,
    traceparent  text,
    tracestate   text,
    payload      bytea       NOT NULL,
    deliver_at   timestamptz,
    enqueued_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT outbox_message_pkey PRIMARY KEY (id),
    CONSTRAINT outbox_message_message_id_key UNIQUE (message_id),
    CONSTRAINT outbox_message_message_id_is_version_7 CHECK (get_byte(uuid_send(message_id), 6) >> 4 = 7),
    CONSTRAINT outbox_message_topic_has_1_to_255_bytes CHECK (octet_length(topic) BETWEEN 1 AND 255),
    CONSTRAINT outbox_message_key_has_1_to_255_bytes CHECK (octet_length(key) BETWEEN 1 AND 255),
    CONSTRAINT outbox_message_kind_has_1_to_255_bytes CHECK (octet_length(kind) BETWEEN 1 AND 255),
    CONSTRAINT outbox_message_content_type_has_1_to_255_bytes CHECK (octet_length(content_type) BETWEEN 1 AND 255),
    CONSTRAINT outbox_message_headers_are_an_object CHECK (jsonb_typeof(headers) = 'object'),
    -- what a client library can represent, and what clock_timestamp() can be subtracted from
    CONSTRAINT outbox_message_deliver_at_is_finite CHECK (deliver_at BETWEEN '1970-01-01Z' AND '9999-12-31Z'),
    CONSTRAINT outbox_message_enqueued_at_is_finite CHECK (enqueued_at BETWEEN '1970-01-01Z' AND '9999-12-31Z')
);

COMMENT ON TABLE {schema}outbox_message IS 'append-only: rows are never updated and never deleted one by one';
COMMENT ON COLUMN {schema}outbox_message.kind IS 'the CloudEvents type; where it is null, the topic is the type';
COMMENT ON INDEX {schema}outbox_message_pkey IS
    'reads a difference in the order of ids; joins exceptions with their messages';
COMMENT ON INDEX {schema}outbox_message_message_id_key IS
    'detects a second enqueue of one id; finds out whether an unknown commit happened; replays by message id';

CREATE INDEX outbox_message_xid_id_idx ON {schema}outbox_message (xid, id);
COMMENT ON INDEX {schema}outbox_message_xid_id_idx IS
    'reads the rows of transactions that were in flight when the mark before was taken';

CREATE TABLE {schema}outbox_identity (
    singleton         boolean     NOT NULL DEFAULT true,
    system_identifier text        NOT NULL,
    recorded_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT outbox_identity_pkey PRIMARY KEY (singleton),
    CONSTRAINT outbox_identity_has_one_row CHECK (singleton)
);
COMMENT ON TABLE {schema}outbox_identity IS
    'the cluster whose transaction ids the rows carry; another one after a restore means that cursors are rebased';
INSERT INTO {schema}outbox_identity (system_identifier) SELECT system_identifier::text FROM pg_control_system();

CREATE TABLE {schema}outbox_relay (
    relay         text        NOT NULL,
    shard         smallint    NOT NULL DEFAULT 0,
    epoch         bigint      NOT NULL,
    holder        text,
    taken_from    text,
    lease_until   timestamptz,
    cursor        text        NOT NULL,
    checkpoint_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT outbox_relay_pkey PRIMARY KEY (relay, shard),
    CONSTRAINT outbox_relay_holder_has_a_lease CHECK ((holder IS NULL) = (lease_until IS NULL))
) WITH (fillfactor = 10); -- updated several times a second: room for heap-only updates while a snapshot is open
COMMENT ON COLUMN {schema}outbox_relay.epoch IS 'the fencing token: a later holder has a larger one';
COMMENT ON COLUMN {schema}outbox_relay.taken_from IS 'whose expired lease the present holder took over';
COMMENT ON INDEX {schema}outbox_relay_pkey IS 'lease, renewal and checkpoint of one relay';

CREATE TABLE {schema}outbox_exception (
    relay          text        NOT NULL,
    shard          smallint    NOT NULL DEFAULT 0,
    id             bigint      NOT NULL,
    message_id     uuid        NOT NULL,
    topic          text        NOT NULL,
    key            text,
    state          text        NOT NULL,
    attempts       integer     NOT NULL DEFAULT 0,
    due_at         timestamptz,
    fault          text,
    error          text,
    edited_payload bytea,
    edited_headers jsonb,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT outbox_exception_pkey PRIMARY KEY (relay, shard, id),
    CONSTRAINT outbox_exception_state_is_known
        CHECK (state IN ('scheduled', 'retrying', 'held', 'dead', 'discarded')),
    CONSTRAINT outbox_exception_due_state_has_a_time
        CHECK (state NOT IN ('scheduled', 'retrying', 'discarded') OR due_at IS NOT NULL),
    CONSTRAINT outbox_exception_fault_is_known CHECK (fault IN ('broker', 'message', 'operator')),
    CONSTRAINT outbox_exception_attempts_are_not_negative CHECK (attempts >= 0)
);
COMMENT ON TABLE {schema}outbox_exception IS 'the only entries with a row beside the log: those that did not simply leave';
COMMENT ON INDEX {schema}outbox_exception_pkey IS 'checkpoint, requeue, discard and edit of one entry; lists by id';

CREATE INDEX outbox_exception_due_idx ON {schema}outbox_exception (relay, shard, due_at, id)
    WHERE state IN ('scheduled', 'retrying', 'discarded');
COMMENT ON INDEX {schema}outbox_exception_due_idx IS 'what is due now, and when the next one is due';

CREATE INDEX outbox_exception_held_idx ON {schema}outbox_exception (relay, shard, id) WHERE state = 'held';
COMMENT ON INDEX {schema}outbox_exception_held_idx IS 'held entries in the order of ids, when their key or topic is free again';

CREATE INDEX outbox_exception_dead_idx ON {schema}outbox_exception (relay, shard, id) WHERE state = 'dead';
COMMENT ON INDEX {schema}outbox_exception_dead_idx IS 'lists dead entries for operators';

CREATE TABLE {schema}outbox_audit (
    seq           bigint      GENERATED ALWAYS AS IDENTITY,
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor         text        NOT NULL,
    relay         text        NOT NULL,
    id            bigint      NOT NULL,
    message_id    uuid        NOT NULL,
    action        text        NOT NULL,
    note          text        NOT NULL,
    digest_before text,
    digest_after  text,
    CONSTRAINT outbox_audit_pkey PRIMARY KEY (seq),
    CONSTRAINT outbox_audit_action_is_known CHECK (action IN ('requeue', 'discard', 'edit'))
);
COMMENT ON TABLE {schema}outbox_audit IS 'who decided what about a dead entry; the digests are SHA-256 of payload and headers';
COMMENT ON INDEX {schema}outbox_audit_pkey IS 'lists decisions in their order';

-- What topic, key and the other names must be, with an error that says what is wrong.
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
    new_id uuid := coalesce(message_id, {schema}outbox_new_message_id());
    header record;
BEGIN
    IF topic IS NULL OR payload IS NULL THEN
        RAISE EXCEPTION 'topic and payload must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    PERFORM {schema}outbox_check_text('topic', topic, '^[A-Za-z0-9._/:#-]+$');
    PERFORM {schema}outbox_check_text('key', key, '^[^[:cntrl:]]+$');
    PERFORM {schema}outbox_check_text('kind', kind, '^[^[:cntrl:]]+$');
    PERFORM {schema}outbox_check_text('content type', coalesce(content_type, ''), '^[ -~]+$');
    IF get_byte(uuid_send(new_id), 6) >> 4 <> 7 THEN
        RAISE EXCEPTION 'message id % is not a version 7 UUID', new_id
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out and one is made.';
    ELSIF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'headers are a JSON %; they must be an object of texts', jsonb_typeof(headers)
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF traceparent !~ '^00-[0-9a-f]+-[0-9a-f]+-[0-9a-f][0-9a-f]$' OR length(traceparent) <> 55 THEN
        RAISE EXCEPTION 'traceparent "%" is not of the form 00-<32 hex>-<16 hex>-<2 hex>', left(traceparent, 64)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR header IN SELECT h.key AS name, h.value FROM jsonb_each(headers) AS h LOOP
        PERFORM {schema}outbox_check_text('header name', header.name, '^[A-Za-z0-9._-]+$');
        IF jsonb_typeof(header.value) <> 'string' OR octet_length(header.value #>> ARRAY[]::text[]) > 8192 THEN
            RAISE EXCEPTION 'header "%" must be a text of at most 8192 bytes', header.name
                USING ERRCODE = 'invalid_parameter_value';
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
    SELECT {schema}outbox_enqueue(topic, convert_to(payload::text, 'UTF8'), key, kind, 'application/json', headers,
        deliver_at, message_id)
$$;
COMMENT ON FUNCTION {schema}outbox_enqueue_json(text, jsonb, text, text, jsonb, timestamptz, uuid) IS
    'as outbox_enqueue, for a JSON payload';
