-- What stands beside the log has a copy of its content, so that segments do not wait for it; and held entries are found
-- by their key.
--
-- Relays of the version before would park without a copy. Their leases are taken away here: at their next checkpoint
-- they connect anew, and find a schema that is too new for them.
LOCK TABLE {schema}outbox_relay, {schema}outbox_exception IN ACCESS EXCLUSIVE MODE;
UPDATE {schema}outbox_relay SET epoch = epoch + 1, holder = NULL, lease_until = NULL;

CREATE TABLE {schema}outbox_parked (
    relay        text     NOT NULL,
    shard        smallint NOT NULL DEFAULT 0,
    id           bigint   NOT NULL,
    kind         text,
    content_type text     NOT NULL,
    headers      jsonb,
    traceparent  text,
    tracestate   text,
    payload      bytea    NOT NULL,
    enqueued_at  timestamptz NOT NULL,
    edited_at    timestamptz,
    CONSTRAINT outbox_parked_pkey PRIMARY KEY (relay, shard, id),
    CONSTRAINT outbox_parked_headers_are_an_object CHECK (jsonb_typeof(headers) = 'object')
);
COMMENT ON TABLE {schema}outbox_parked IS
    'the content of each row of outbox_exception, copied when it was parked: its segment of the log may go';
COMMENT ON COLUMN {schema}outbox_parked.edited_at IS 'when an operator replaced the content; null as long as it is the log''s';
COMMENT ON INDEX {schema}outbox_parked_pkey IS 'the content of an entry that is due, free again or looked at';

INSERT INTO {schema}outbox_parked
    (relay, shard, id, kind, content_type, headers, traceparent, tracestate, payload, enqueued_at, edited_at)
SELECT e.relay, e.shard, e.id, m.kind, m.content_type, coalesce(e.edited_headers, m.headers), m.traceparent, m.tracestate,
    coalesce(e.edited_payload, m.payload), m.enqueued_at,
    CASE WHEN e.edited_payload IS NOT NULL OR e.edited_headers IS NOT NULL THEN e.updated_at END
FROM {schema}outbox_exception AS e CROSS JOIN LATERAL (
    SELECT * FROM {schema}outbox_message
    WHERE id = e.id AND (get_byte(uuid_send(message_id), 2) >> 2) & 7 = (get_byte(uuid_send(e.message_id), 2) >> 2) & 7
    LIMIT 1) AS m;
ALTER TABLE {schema}outbox_exception DROP COLUMN edited_payload, DROP COLUMN edited_headers;

-- Who has rights on all of outbox_exception has them on the copies; who may see only some of its columns sees no content.
DO $migration$
DECLARE
    home    text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}outbox_parked'::regclass);
    allowed record;
BEGIN
    FOR allowed IN
        SELECT a.* FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
        WHERE c.oid = '{schema}outbox_exception'::regclass AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('GRANT %s ON %s.outbox_parked TO %s', allowed.privilege_type, home,
            CASE allowed.grantee WHEN 0 THEN 'PUBLIC' ELSE allowed.grantee::regrole::text END);
    END LOOP;
END
$migration$;

-- A queue of held entries: those of a key, whatever their topics, or those of a topic that have no key.
DROP INDEX {schema}outbox_exception_held_idx;
CREATE INDEX outbox_exception_queue_idx ON {schema}outbox_exception
    (relay, shard, (coalesce('k' || key, 't' || topic) COLLATE "C"), id) WHERE state = 'held';
COMMENT ON INDEX {schema}outbox_exception_queue_idx IS
    'the held entries of a key, or of a topic without a key, in the order of ids; which queues there are';

DROP INDEX {schema}outbox_exception_dead_idx;
CREATE INDEX outbox_exception_stuck_idx ON {schema}outbox_exception (relay, shard, id) WHERE state IN ('retrying', 'dead');
COMMENT ON INDEX {schema}outbox_exception_stuck_idx IS
    'what keys wait for, when a relay takes over; lists dead entries for operators';

-- Segments need not know what is parked any more.
DROP INDEX {schema}outbox_exception_id_idx;

DO $migration$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}outbox_message'::regclass);
BEGIN
    -- As before, without what is parked: `parked` stays null. See 0003_segments.
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
        BEGIN
            bytes := pg_total_relation_size(format('%home%.outbox_message_%s', number)::regclass);
            SELECT m.id, m.enqueued_at INTO newest_id, newest_at FROM %home%.outbox_message AS m
            WHERE ((get_byte(uuid_send(m.message_id), 2) >> 2) & 7) = number ORDER BY m.id DESC LIMIT 1;
            SELECT m.enqueued_at INTO oldest_at FROM %home%.outbox_message AS m
            WHERE ((get_byte(uuid_send(m.message_id), 2) >> 2) & 7) = number ORDER BY m.id LIMIT 1;
            reason := CASE WHEN newest_id IS NULL THEN 'empty' WHEN newest_at > clock_timestamp() - keep THEN 'young' END;
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
                SELECT split_part(c.base, '@', 1)::bigint AS floor, split_part(c.base, '@', 2)::pg_snapshot AS snapshot
                OFFSET 0) AS mark
            WHERE EXISTS (
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
            ORDER BY mark.floor, r.relay LIMIT 1;

            -- A log that nobody has read is undecided as a whole.
            IF NOT EXISTS (SELECT FROM %home%.outbox_relay) THEN
                reason := 'unread';
            END IF;
            RETURN NEXT;
        END
        $body$
    $function$, '%home%', home);

    -- As before; what is parked has its copy, so nothing is written back.
    EXECUTE replace($function$
        CREATE OR REPLACE FUNCTION %home%.outbox_expire_segment(number integer, keep interval) RETURNS text
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        SET lock_timeout = '25ms'
        SET jit = off
        SET enable_seqscan = off
        AS $body$
        DECLARE
            held text;
        BEGIN
            IF current_setting('transaction_isolation') <> 'read committed' THEN
                RAISE EXCEPTION 'a segment cannot be expired in a transaction that is %', current_setting('transaction_isolation')
                    USING ERRCODE = 'invalid_transaction_state', HINT = 'It would not see what has committed: use READ COMMITTED.';
            ELSIF number IS NULL OR keep IS NULL OR number NOT BETWEEN 0 AND 7 OR keep < interval '0' THEN
                RAISE EXCEPTION 'segment % cannot be kept for %', number, keep
                    USING ERRCODE = 'invalid_parameter_value', HINT = 'Segments are 0 to 7, and times are not negative.';
            ELSIF NOT pg_try_advisory_xact_lock(8031439170474173555) THEN
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
            EXECUTE format(
                'UPDATE %home%.outbox_retention AS r
                 SET expired_through = greatest(r.expired_through, (SELECT m.message_id FROM %home%.outbox_message_%s AS m
                     ORDER BY m.message_id DESC LIMIT 1)), expired_at = clock_timestamp()', number);
            EXECUTE format('TRUNCATE TABLE ONLY %home%.outbox_message_%s', number);
            RETURN NULL;
        END
        $body$
    $function$, '%home%', home);

    EXECUTE replace($function$
        CREATE OR REPLACE FUNCTION %home%.outbox_forget_relay(name text, discard_parked boolean)
        RETURNS TABLE (outcome text, holder text, parked bigint)
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        AS $body$
        BEGIN
            SELECT CASE WHEN r.lease_until > clock_timestamp() THEN r.holder END INTO holder
            FROM %home%.outbox_relay AS r WHERE r.relay = name AND r.shard = 0 FOR UPDATE;
            outcome := CASE WHEN NOT FOUND THEN 'unknown' WHEN holder IS NOT NULL THEN 'leading' END;
            SELECT count(*) INTO parked FROM %home%.outbox_exception AS e WHERE e.relay = name;
            IF outcome IS NULL AND parked > 0 AND discard_parked IS NOT TRUE THEN
                outcome := 'parked';
            ELSIF outcome IS NULL THEN
                DELETE FROM %home%.outbox_exception AS e WHERE e.relay = name;
                DELETE FROM %home%.outbox_parked AS p WHERE p.relay = name;
                DELETE FROM %home%.outbox_relay AS r WHERE r.relay = name;
                outcome := 'forgotten';
            END IF;
            RETURN NEXT;
        END
        $body$
    $function$, '%home%', home);
END
$migration$;

COMMENT ON FUNCTION {schema}outbox_expire_segment(integer, interval) IS
    'empties a segment that every relay has passed and whose youngest row is older; returns why not, or null';
