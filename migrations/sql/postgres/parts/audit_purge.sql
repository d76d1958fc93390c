-- Decisions are kept for years, not for ever. A service cannot remove young ones, and so cannot
-- take back what was decided.
CREATE FUNCTION {schema}{line}_purge_audit(before timestamptz, rows_max integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    purged bigint;
BEGIN
    IF before > clock_timestamp() - interval '30 days' THEN
        RAISE EXCEPTION 'decisions of the last 30 days are kept: % is too late', before
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- What stays does not count towards the limit: many such rows must not keep what is behind
    -- them. Several processes purge at once.
    DELETE FROM %home%.{line}_audit WHERE ctid = ANY (ARRAY(
        SELECT a.ctid FROM %home%.{line}_audit AS a WHERE a.at < before AND {is_settled}
        ORDER BY a.at LIMIT rows_max FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS purged = ROW_COUNT;
    RETURN purged;
END
$$;
REVOKE ALL ON FUNCTION {schema}{line}_purge_audit(timestamptz, integer) FROM PUBLIC;
COMMENT ON FUNCTION {schema}{line}_purge_audit(timestamptz, integer) IS
    'removes decisions from before a moment at least 30 days ago, the oldest first, at most rows_max; returns how many';
