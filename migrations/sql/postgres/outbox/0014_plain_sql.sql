-- Rows of plain SQL: headers that the envelope has itself are refused, as in the library, and a time of enqueueing that lies
-- ahead keeps no history.

-- As before (0001_log). A plain INSERT is not checked: the relay parks what is no message.
CREATE OR REPLACE FUNCTION {schema}outbox_enqueue(
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
        IF lower(header.name COLLATE "C") ~ '^(ce[_-]|cloudevents_|(content-type|traceparent|tracestate|message-id)$)' THEN
            RAISE EXCEPTION 'header name "%" is reserved for the envelope; choose another name', header.name
                USING ERRCODE = 'invalid_parameter_value',
                HINT = 'Reserved are ce_*, ce-*, cloudEvents_*, content-type, traceparent, tracestate and message-id. '
                    'What they say has parameters of its own.';
        ELSIF jsonb_typeof(header.value) <> 'string' OR octet_length(header.value #>> ARRAY[]::text[]) > 8192 THEN
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

DO $migration$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}outbox_message'::regclass);
BEGIN
    -- As before (0012_bounds), but for the age of a row whose time lies ahead.
    EXECUTE replace($function$
        CREATE OR REPLACE FUNCTION %home%.outbox_segment(number integer, keep interval)
        RETURNS TABLE (newest_id bigint, newest_at timestamptz, oldest_at timestamptz, bytes bigint, parked bigint,
            reason text, culprit text)
        LANGUAGE plpgsql STABLE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        SET jit = off
        SET enable_seqscan = off
        SET enable_sort = off
        AS $body$
        #variable_conflict use_column
        DECLARE
            present        timestamptz := clock_timestamp();
            newest_message uuid;
        BEGIN
            bytes := pg_total_relation_size(format('%home%.outbox_message_%s', number)::regclass);
            SELECT m.id, m.enqueued_at, m.message_id INTO newest_id, newest_at, newest_message
            FROM %home%.outbox_message AS m
            WHERE ((get_byte(uuid_send(m.message_id), 2) >> 2) & 7) = number ORDER BY m.id DESC LIMIT 1;
            SELECT m.enqueued_at INTO oldest_at FROM %home%.outbox_message AS m
            WHERE ((get_byte(uuid_send(m.message_id), 2) >> 2) & 7) = number ORDER BY m.id LIMIT 1;
            -- A time that lies ahead is not when the row was written. The time in its id tells its age, or the next row
            -- with a time that can be.
            reason := CASE
                WHEN newest_id IS NULL THEN 'empty'
                WHEN newest_at <= present THEN CASE WHEN newest_at > present - keep THEN 'young' END
                WHEN newest_message > (lpad(to_hex(greatest(extract(epoch FROM present - keep) * 1000, 0)::bigint), 12, '0')
                        || '7fffbfffffffffffffff')::uuid
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

            -- Of another cluster, and not rebased yet: its transaction ids say nothing here.
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
                SELECT split_part(c.base, '@', 1)::bigint AS floor, split_part(c.base, '@', 2)::pg_snapshot AS snapshot,
                    split_part(split_part(c.base, '@', 3), '/', 1) AS system_identifier
                OFFSET 0) AS mark
            -- What its relay finds when it takes its lease, and mends: see 0005_histories.
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
                -- An id that the sequence has given out again: the row is not visible in a snapshot that sees some.
                OR pg_snapshot_xmax(mark.snapshot) > '1'::xid8 AND EXISTS (
                    SELECT FROM (
                        SELECT m.id FROM %home%.outbox_message AS m
                        WHERE ((get_byte(uuid_send(m.message_id), 2) >> 2) & 7) = number
                            AND (m.xid, m.id) > (pg_snapshot_xmax(mark.snapshot), 0::bigint)
                        ORDER BY m.xid, m.id LIMIT 10000) AS young
                    WHERE young.id <= mark.floor)
            ORDER BY mark.floor, r.relay LIMIT 1;

            -- What is parked without a copy of its content has it here only.
            IF reason IS NULL THEN
                SELECT 'parked', p.relay INTO reason, culprit
                FROM %home%.outbox_parked AS p CROSS JOIN LATERAL (
                    SELECT FROM %home%.outbox_exception AS e
                    WHERE e.relay = p.relay AND e.shard = p.shard AND e.id = p.id
                        AND ((get_byte(uuid_send(e.message_id), 2) >> 2) & 7) = number LIMIT 1) AS e
                WHERE p.payload IS NULL LIMIT 1;
            END IF;

            -- A log that nobody has read is undecided as a whole.
            IF NOT EXISTS (SELECT FROM %home%.outbox_relay) THEN
                reason := 'unread';
            END IF;
            RETURN NEXT;
        END
        $body$
    $function$, '%home%', home);
END
$migration$;
