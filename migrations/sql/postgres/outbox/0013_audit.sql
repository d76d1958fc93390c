-- The audit: the cause of what was decided about, a way from a message to its decisions, and an end.

-- Compared by its bytes, as all texts of indexes (0011_bytewise).
ALTER TABLE {schema}outbox_audit
    ALTER COLUMN relay TYPE text COLLATE "C",
    ADD COLUMN fault text,
    ADD COLUMN error text;
COMMENT ON COLUMN {schema}outbox_audit.error IS
    'why the entry was dead when the decision was made; a discarded one leaves no other trace of it';

CREATE INDEX outbox_audit_message_idx ON {schema}outbox_audit (relay, message_id, seq);
COMMENT ON INDEX {schema}outbox_audit_message_idx IS
    'what was decided about a message: for each row that a replay, a tail, a verification or a list looks at';

DO $migration$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}outbox_message'::regclass);
BEGIN
    -- Looks at the oldest lines only, so that a call is short; ids ascend in time. A decision stays as long as its message
    -- could leave by it: while the log has the row, or a relay has it parked.
    EXECUTE replace($function$
        CREATE FUNCTION %home%.outbox_forget_decisions(keep interval, lines integer) RETURNS bigint
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        SET lock_timeout = '25ms'
        SET jit = off
        SET enable_seqscan = off
        AS $body$
        DECLARE
            decisions  bigint;
            operations bigint;
        BEGIN
            IF keep IS NULL OR lines IS NULL OR keep < interval '30 days' OR lines NOT BETWEEN 1 AND 10000 THEN
                RAISE EXCEPTION 'decisions cannot be kept for %, % at once', keep, lines
                    USING ERRCODE = 'invalid_parameter_value', HINT = 'Keep them for 30 days or longer, 1 to 10000 at once.';
            END IF;
            DELETE FROM %home%.outbox_audit WHERE ctid = ANY(ARRAY(
                SELECT old.place
                FROM (SELECT ctid AS place, relay, id, message_id, at FROM %home%.outbox_audit
                    ORDER BY seq LIMIT lines) AS old
                WHERE old.at < clock_timestamp() - keep
                    AND NOT EXISTS (SELECT FROM %home%.outbox_message AS m WHERE m.message_id = old.message_id
                        AND (get_byte(uuid_send(m.message_id), 2) >> 2) & 7
                            = (get_byte(uuid_send(old.message_id), 2) >> 2) & 7 OFFSET 0)
                    AND NOT EXISTS (SELECT FROM %home%.outbox_exception AS e
                        WHERE e.relay = old.relay AND e.shard = 0 AND e.id = old.id OFFSET 0)));
            GET DIAGNOSTICS decisions = ROW_COUNT;
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

REVOKE ALL ON FUNCTION {schema}outbox_forget_decisions(interval, integer) FROM PUBLIC;
COMMENT ON FUNCTION {schema}outbox_forget_decisions(interval, integer) IS
    'removes the oldest decisions and operations when they are older than this and their messages are gone; 30 days at least';
