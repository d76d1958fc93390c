-- Texts of indexes are compared by their bytes. In the database's collation their order changes with the operating system or
-- with ICU, and an index in another order finds no duplicate. Tables are not rewritten; their indexes are built anew.
--
-- Relays of the version before end their term: the server has no plan any more for what they asked. They connect anew and
-- find a schema that is too new for them.
LOCK TABLE {schema}outbox_relay, {schema}outbox_exception, {schema}outbox_parked, {schema}outbox_pause, {schema}outbox_rebased
    IN ACCESS EXCLUSIVE MODE;
ALTER TABLE {schema}outbox_relay ALTER COLUMN relay TYPE text COLLATE "C";
ALTER TABLE {schema}outbox_exception ALTER COLUMN relay TYPE text COLLATE "C";
ALTER TABLE {schema}outbox_parked ALTER COLUMN relay TYPE text COLLATE "C";
ALTER TABLE {schema}outbox_pause
    ALTER COLUMN relay TYPE text COLLATE "C",
    ALTER COLUMN kind TYPE text COLLATE "C",
    ALTER COLUMN name TYPE text COLLATE "C";
ALTER TABLE {schema}outbox_rebased ALTER COLUMN relay TYPE text COLLATE "C";

-- The first eight digits of a WAL file's name are the timeline that is being written; the control file tells it only after a
-- checkpoint. Clouds refuse these functions (Aurora: "wal_level must be set to 'logical'"), and one that does has no
-- timeline to tell: 0. Whoever asks needs no other answer than this one.
CREATE FUNCTION {schema}outbox_timeline() RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
EXCEPTION
    WHEN object_not_in_prerequisite_state OR undefined_function OR insufficient_privilege OR feature_not_supported THEN
        RETURN 0;
END
$$;
COMMENT ON FUNCTION {schema}outbox_timeline() IS
    'the timeline that the server writes; 0 where it does not tell: then nobody sees that a standby was promoted';

-- The bookkeeping is of all lines: whichever comes first does it, if it may.
DO $migration$
BEGIN
    IF EXISTS (
        SELECT FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
        WHERE c.oid = '{schema}outbox_toolkit_migration'::regclass AND a.attname = 'line'
            AND a.attcollation <> 'pg_catalog."C"'::regcollation AND pg_has_role(c.relowner, 'USAGE'))
    THEN
        ALTER TABLE {schema}outbox_toolkit_migration ALTER COLUMN line TYPE text COLLATE "C";
    END IF;
END
$migration$;
