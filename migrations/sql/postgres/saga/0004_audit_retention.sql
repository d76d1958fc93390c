-- Decisions are kept for years, and not for ever. They are removed by a function that runs with the owner's rights and refuses
-- what is young: a service cannot take back what was decided about its sagas.
DO $migration$
DECLARE
    home text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = '{schema}saga_audit'::regclass);
BEGIN
    EXECUTE replace($function$
        CREATE FUNCTION %home%.saga_purge_audit(before timestamptz, rows_max integer) RETURNS bigint
        LANGUAGE plpgsql VOLATILE SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp
        AS $body$
        DECLARE
            purged bigint;
        BEGIN
            IF before > clock_timestamp() - interval '30 days' THEN
                RAISE EXCEPTION 'decisions of the last 30 days are kept: % is too late', before
                    USING ERRCODE = 'invalid_parameter_value';
            END IF;
            -- Only the oldest are looked at.
            DELETE FROM %home%.saga_audit WHERE ctid = ANY (ARRAY(
                SELECT a.ctid FROM (SELECT ctid, at FROM %home%.saga_audit ORDER BY seq LIMIT rows_max) AS a
                WHERE a.at < before));
            GET DIAGNOSTICS purged = ROW_COUNT;
            RETURN purged;
        END
        $body$
    $function$, '%home%', home);
END
$migration$;

REVOKE ALL ON FUNCTION {schema}saga_purge_audit(timestamptz, integer) FROM PUBLIC;
COMMENT ON FUNCTION {schema}saga_purge_audit(timestamptz, integer) IS
    'removes decisions from before a moment at least 30 days ago, of the oldest ones; returns how many';
