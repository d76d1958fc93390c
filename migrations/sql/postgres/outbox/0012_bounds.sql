-- What a relay does rarely, bounded: the bytes that it copies aside at once, the numbers that it is believed, and whom its
-- locks keep waiting.

-- A content that is too large to be copied in a checkpoint stays in the log, which keeps its segment meanwhile.
ALTER TABLE {schema}outbox_parked ALTER COLUMN payload DROP NOT NULL;
COMMENT ON COLUMN {schema}outbox_parked.payload IS
    'null: too large to be copied with the checkpoint; content and headers are those of the row of the log';
CREATE INDEX outbox_parked_uncopied_idx ON {schema}outbox_parked (relay, shard, id) WHERE payload IS NULL;
COMMENT ON INDEX {schema}outbox_parked_uncopied_idx IS 'which segments have the only content of something parked';

DO $migration$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}outbox_message'::regclass);
BEGIN
    -- As before (0007_retention_histories), and what is parked without a copy keeps its segment.
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

    -- As before (0006_parked). An id that is ahead of the clock hides nothing that is older than it.
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
                 SET expired_through = least(
                     greatest(r.expired_through, (SELECT m.message_id FROM %home%.outbox_message_%s AS m
                         ORDER BY m.message_id DESC LIMIT 1)), $1), expired_at = clock_timestamp()', number)
            USING (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
                || '7fffbfffffffffffffff')::uuid;
            EXECUTE format('TRUNCATE TABLE ONLY %home%.outbox_message_%s', number);
            RETURN NULL;
        END
        $body$
    $function$, '%home%', home);

    -- As before (0006_parked), and the decisions to discard are taken back.
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
                -- Whoever has this name next publishes what was discarded: the decisions are taken back.
                INSERT INTO %home%.outbox_audit (actor, relay, id, message_id, action, note)
                SELECT 'relay forget', name, max(a.id), a.message_id, 'requeue', 'the relay was forgotten'
                FROM %home%.outbox_audit AS a WHERE a.relay = name GROUP BY a.message_id
                HAVING max(a.seq) FILTER (WHERE a.action = 'discard')
                    > coalesce(max(a.seq) FILTER (WHERE a.action = 'requeue'), 0);
                outcome := 'forgotten';
            END IF;
            RETURN NEXT;
        END
        $body$
    $function$, '%home%', home);

    -- As before (0002_least_privilege, 0010_shared_ids). Who only reads the cursors, as a dump does for hours, neither waits
    -- nor is waited for.
    EXECUTE replace($function$
        CREATE OR REPLACE FUNCTION %home%.outbox_rebase_rows() RETURNS bigint
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        AS $body$
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
        $body$
    $function$, '%home%', home);

    EXECUTE replace($function$
        CREATE OR REPLACE FUNCTION %home%.outbox_renumber_rows(snapshot pg_snapshot, floor bigint) RETURNS bigint
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        AS $body$
        DECLARE
            moved      record;
            fresh      bigint;
            renumbered bigint := 0;
        BEGIN
            LOCK TABLE %home%.outbox_relay IN EXCLUSIVE MODE;
            -- A snapshot that sees nothing says nothing about the rows up to its floor. At first without the lock that
            -- keeps producers out: a row that commits now is met by a relay.
            IF NOT EXISTS (
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
                later AS (SELECT u.key, u.enqueued_at FROM unseen AS u WHERE u.nth > 1)
                SELECT u.segment, u.place, u.id, u.message_id, e.id IS NOT NULL AS is_parked
                FROM unseen AS u
                LEFT JOIN (SELECT DISTINCT x.id, x.message_id FROM %home%.outbox_exception AS x) AS e
                    ON e.id = u.id AND e.message_id = u.message_id
                WHERE u.nth > 1
                    OR u.key IN (SELECT l.key FROM later AS l)
                        AND u.enqueued_at >= (SELECT min(l.enqueued_at) FROM later AS l)
                ORDER BY u.id, u.enqueued_at, u.message_id
            LOOP
                UPDATE %home%.outbox_message AS m SET id = DEFAULT
                WHERE m.tableoid = moved.segment AND m.ctid = moved.place RETURNING m.id INTO STRICT fresh;
                IF moved.is_parked THEN
                    UPDATE %home%.outbox_parked AS p SET id = fresh
                    FROM %home%.outbox_relay AS r, %home%.outbox_exception AS e
                    WHERE e.relay = r.relay AND e.shard = r.shard AND e.id = moved.id AND e.message_id = moved.message_id
                        AND p.relay = e.relay AND p.shard = e.shard AND p.id = e.id;
                    UPDATE %home%.outbox_exception AS e SET id = fresh FROM %home%.outbox_relay AS r
                    WHERE e.relay = r.relay AND e.shard = r.shard AND e.id = moved.id AND e.message_id = moved.message_id;
                END IF;
                renumbered := renumbered + 1;
            END LOOP;
            -- Who reads with a mark of before would pass over what has moved: no mark of another run is believed.
            UPDATE %home%.outbox_server_run SET run_id = gen_random_uuid();
            RETURN renumbered;
        END
        $body$
    $function$, '%home%', home);

    -- As before (0005_histories). Ids of rows are given out by the sequence. Numbers that relays have written are believed up
    -- to 2^40 ahead of it, more than any log has lost: a sequence never goes back, and at its end nobody can enqueue any more.
    EXECUTE replace($function$
        CREATE OR REPLACE FUNCTION %home%.outbox_advance_sequence() RETURNS bigint
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        SET lock_timeout = '25ms'
        AS $body$
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
        $body$
    $function$, '%home%', home);
END
$migration$;

COMMENT ON FUNCTION {schema}outbox_advance_sequence() IS
    'after a sequence went back: sets it above every id that rows, exceptions and cursors know; never backwards';
