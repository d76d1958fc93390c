-- Texts of indexes are compared by their bytes. In the database's collation their order changes with the operating system or
-- with ICU, and an index in another order finds no duplicate: a saga would be started twice. Tables are not rewritten; their
-- indexes are built anew while workers wait.
LOCK TABLE {schema}saga, {schema}saga_step, {schema}saga_reply IN ACCESS EXCLUSIVE MODE;
ALTER TABLE {schema}saga
    ALTER COLUMN type TYPE text COLLATE "C",
    ALTER COLUMN id TYPE text COLLATE "C";
ALTER TABLE {schema}saga_step
    ALTER COLUMN type TYPE text COLLATE "C",
    ALTER COLUMN id TYPE text COLLATE "C",
    ALTER COLUMN name TYPE text COLLATE "C";
ALTER TABLE {schema}saga_reply
    ALTER COLUMN type TYPE text COLLATE "C",
    ALTER COLUMN id TYPE text COLLATE "C",
    ALTER COLUMN step TYPE text COLLATE "C";

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
