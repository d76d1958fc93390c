-- Retention believes no cursor that its relay would not believe: after a restore or a reset, and before the relay takes its
-- lease again, such a cursor can seem to have passed rows that nobody has read.
DO $migration$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}outbox_message'::regclass);
BEGIN
    -- As before (0003_segments), and a cursor of another history has passed nothing.
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
