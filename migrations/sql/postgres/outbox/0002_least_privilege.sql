-- What producers and relays need of the log beyond plain INSERT and SELECT, as functions that run with the owner's
-- rights, so that no producer has to read payloads and no relay has to update messages.
--
-- Each names its tables with their schema and has a search_path of its own: nobody can put other tables in between.
-- The schema is looked up here, because it may come from the search_path of whoever migrates.
DO $migration$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}outbox_message'::regclass);
BEGIN
    -- The same parts and lengths as the toolkit's own fingerprint: type, content type, payload.
    EXECUTE replace($function$
        CREATE FUNCTION %home%.outbox_stored(ids uuid[])
        RETURNS TABLE (message_id uuid, fingerprint bytea)
        LANGUAGE sql STABLE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        AS $body$
            SELECT m.message_id, sha256(
                int8send(length(part.kind)::bigint) || part.kind
                || int8send(length(part.content_type)::bigint) || part.content_type
                || int8send(length(m.payload)::bigint) || m.payload)
            FROM %home%.outbox_message AS m
            CROSS JOIN LATERAL (
                SELECT convert_to(coalesce(m.kind, m.topic), 'UTF8') AS kind,
                    convert_to(m.content_type, 'UTF8') AS content_type OFFSET 0) AS part
            WHERE m.message_id = ANY(ids)
        $body$
    $function$, '%home%', home);

    EXECUTE replace($function$
        CREATE FUNCTION %home%.outbox_rebase_rows() RETURNS bigint
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        AS $body$
        DECLARE
            rewritten bigint;
        BEGIN
            LOCK TABLE %home%.outbox_relay IN ACCESS EXCLUSIVE MODE;
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
END
$migration$;

REVOKE ALL ON FUNCTION {schema}outbox_stored(uuid[]), {schema}outbox_rebase_rows() FROM PUBLIC;
COMMENT ON FUNCTION {schema}outbox_stored(uuid[]) IS
    'what is stored under message ids, as fingerprints: tells a duplicate from an id that is used again';
COMMENT ON FUNCTION {schema}outbox_rebase_rows() IS
    'after a restore into another cluster: rows of unknown transactions become visible in every mark; refused otherwise';
