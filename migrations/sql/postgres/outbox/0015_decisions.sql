-- Decisions: a forgotten relay takes its edits and pauses along, and those that have to stay keep no others.

-- Where the next call of retention begins, so that every old decision has its turn.
ALTER TABLE {schema}outbox_retention ADD COLUMN decisions_after bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN {schema}outbox_retention.decisions_after IS
    'retention has looked at the decisions up to this one in its present round; 0 at the beginning of a round';

DO $migration$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}outbox_message'::regclass);
BEGIN
    -- As before (0012_bounds), and edits and pauses end as well.
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
                -- The next relay of this name publishes what was discarded, and what was edited as it was enqueued: these
                -- decisions are withdrawn.
                INSERT INTO %home%.outbox_audit (actor, relay, id, message_id, action, note)
                SELECT 'relay forget', name, max(a.id), a.message_id, 'requeue', 'the relay was forgotten'
                FROM %home%.outbox_audit AS a WHERE a.relay = name GROUP BY a.message_id
                HAVING max(a.seq) FILTER (WHERE a.action = 'discard')
                        > coalesce(max(a.seq) FILTER (WHERE a.action = 'requeue'), 0)
                    OR max(a.seq) FILTER (WHERE a.action = 'edit')
                        > coalesce(max(a.seq) FILTER (WHERE a.action = 'requeue' AND a.actor = 'relay forget'), 0);
                -- It is not paused either.
                WITH ended AS (DELETE FROM %home%.outbox_pause AS p WHERE p.relay = $1 RETURNING p.kind, p.name)
                INSERT INTO %home%.outbox_operation (actor, relay, action, selection, note)
                SELECT 'relay forget', $1, 'resume', concat_ws(' ', e.kind, nullif(e.name, '')), 'the relay was forgotten'
                FROM ended AS e ORDER BY e.kind, e.name;
                outcome := 'forgotten';
            END IF;
            RETURN NEXT;
        END
        $body$
    $function$, '%home%', home);

    -- As before (0013_audit), but each call goes on where the last one ended. A round ends with lines that are all young,
    -- or with the last line. A plan that sorts would read all lines behind that place.
    EXECUTE replace($function$
        CREATE OR REPLACE FUNCTION %home%.outbox_forget_decisions(keep interval, lines integer) RETURNS bigint
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        SET lock_timeout = '25ms'
        SET jit = off
        SET enable_seqscan = off
        SET enable_bitmapscan = off
        SET enable_sort = off
        AS $body$
        DECLARE
            passed     bigint := (SELECT r.decisions_after FROM %home%.outbox_retention AS r);
            seen       record;
            decisions  bigint;
            operations bigint;
        BEGIN
            IF keep IS NULL OR lines IS NULL OR keep < interval '30 days' OR lines NOT BETWEEN 1 AND 10000 THEN
                RAISE EXCEPTION 'decisions cannot be kept for %, % at once', keep, lines
                    USING ERRCODE = 'invalid_parameter_value', HINT = 'Keep them for 30 days or longer, 1 to 10000 at once.';
            END IF;
            SELECT count(*) AS count, max(next.seq) AS last, bool_and(next.at >= clock_timestamp() - keep) AS are_young
            INTO seen
            FROM (SELECT a.seq, a.at FROM %home%.outbox_audit AS a WHERE a.seq > passed ORDER BY a.seq LIMIT lines) AS next;
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
                SELECT old.place FROM (SELECT ctid AS place, at FROM %home%.outbox_operation ORDER BY seq LIMIT lines) AS old
                WHERE old.at < clock_timestamp() - keep));
            GET DIAGNOSTICS operations = ROW_COUNT;
            RETURN decisions + operations;
        END
        $body$
    $function$, '%home%', home);
END
$migration$;
